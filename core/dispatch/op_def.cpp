#include "core/dispatch/op_def.h"

#include <utility>

namespace muster {

OpDef::OpDef(std::string_view schema_text) { facts_.schema = parse_schema(schema_text).value(); }

OpDef& OpDef::infer(InferFn fn) {
  facts_.infer_one = fn;
  return *this;
}
OpDef& OpDef::infer(InferManyFn fn) {
  facts_.infer_many = fn;
  return *this;
}
OpDef& OpDef::view(ViewFn fn) {
  facts_.view = fn;
  return *this;
}
OpDef& OpDef::kernel(DeviceType device, KernelFn fn) {
  facts_.kernels[static_cast<size_t>(device)] = fn;
  return *this;
}
OpDef& OpDef::composite(CompositeFn fn) {
  facts_.composite = fn;
  return *this;
}
OpDef& OpDef::count(CountFn fn) {
  facts_.count = fn;
  return *this;
}
OpDef& OpDef::in_place() {
  facts_.has_in_place = true;
  return *this;
}
OpDef& OpDef::only_in_place() {
  facts_.only_in_place = true;
  return *this;
}
OpDef& OpDef::derivative(DerivativeFn fn, Saves saves) {
  facts_.derivative = fn;
  facts_.saves = std::move(saves);
  return *this;
}
OpDef& OpDef::not_differentiable(std::string why) {
  facts_.no_derivative_because = std::move(why);
  return *this;
}
OpDef& OpDef::shard(std::vector<std::string> rules) {
  facts_.shard_rules = std::move(rules);
  return *this;
}
OpDef& OpDef::replicate_only(std::string why) {
  facts_.replicate_only_because = std::move(why);
  return *this;
}
OpDef& OpDef::autocast(AutocastClass value) {
  facts_.autocast = value;
  return *this;
}
OpDef& OpDef::fusion(FusionClass value) {
  facts_.fusion = value;
  return *this;
}
OpDef& OpDef::samples(std::vector<std::string> texts) {
  facts_.samples = std::move(texts);
  return *this;
}
OpDef& OpDef::tolerance(Tolerance value) {
  facts_.tolerance = value;
  return *this;
}
OpDef& OpDef::random() {
  facts_.is_random = true;
  return *this;
}
}  // namespace muster
