#include "core/dispatch/op_def.h"

#include <optional>
#include <utility>

#include "core/base/error.h"

namespace muster {
namespace {
std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// "mat2 for self, other" against the schema. A name that is nowhere is left to the table's check.
SavedValue resolve(const Schema& schema, std::string_view text) {
  constexpr std::string_view kFor = " for ";
  SavedValue saved;
  const size_t at = text.find(kFor);
  saved.name = trimmed(text.substr(0, at));
  if (const std::optional<size_t> index = schema.index_of(saved.name)) saved.argument = *index;
  for (size_t i = 0; saved.argument == SavedValue::kNoIndex && i < schema.returns.size(); ++i) {
    if (schema.returns[i].name == saved.name) saved.result = i;
  }
  std::string_view readers = at == std::string_view::npos ? "" : text.substr(at + kFor.size());
  while (!readers.empty()) {
    const size_t comma = readers.find(',');
    const std::string_view reader = trimmed(readers.substr(0, comma));
    const std::optional<size_t> index = schema.index_of(reader);
    MUSTER_ASSERT(index.has_value(), "{}: it saves \"{}\", but has no argument \"{}\"", schema.name,
                  text, reader);
    saved.readers.push_back(*index);
    readers = comma == std::string_view::npos ? "" : readers.substr(comma + 1);
  }
  return saved;
}
}  // namespace

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
  facts_.saves.clear();
  for (const std::string& text : saves) facts_.saves.push_back(resolve(facts_.schema, text));
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
OpDef& OpDef::autocast(AutocastClass value) { return autocast(value, value); }
OpDef& OpDef::autocast(AutocastClass cpu, AutocastClass cuda) {
  facts_.autocast = cpu;
  facts_.autocast_cuda = cuda;
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
