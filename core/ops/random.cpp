// Random fills and factories. The primitives take (seed, offset, box); what users call draws the
// offset from a generator first, above dispatch, so that a sharded call sees which stream it is.
#include "core/ops/random.h"

#include <cmath>
#include <numbers>

#include "core/kernels/cpu/random.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;
constexpr const char* kBox = "dist/tensor passes the box that a shard is of the whole";

// (.., seed, offset, global_sizes, box_start), the last four arguments.
cpu::RandomStream stream_of(const OpArgs& args) {
  const size_t n = args.size();
  cpu::RandomStream stream;
  stream.seed = static_cast<uint64_t>(args[n - 4].integer());
  stream.offset = static_cast<uint64_t>(args[n - 3].integer());
  if (!args[n - 2].is_none()) stream.global_sizes = args[n - 2].ints();
  if (!args[n - 1].is_none()) stream.box_start = args[n - 1].ints();
  return stream;
}

TensorSpec self_infer(const OpArgs& args) { return TensorSpec::of(args.tensor(0)); }

TensorSpec like_infer(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return {DimVector(self.sizes()), preserved_strides(self.sizes(), self.strides()), self.dtype(),
          self.device()};
}

TensorSpec dropout_infer(const OpArgs& args) {
  const double p = args[1].number();
  MUSTER_CHECK(p >= 0 && p <= 1, ErrorCode::kInvalidArgument,
               "dropout: probability has to be between 0 and 1; got {}", p);
  MUSTER_CHECK(is_floating(args.tensor(0).dtype()), ErrorCode::kInvalidArgument,
               "dropout: input must be floating; got {}", args.tensor(0));
  return like_infer(args);
}

TensorSpec randperm_infer(const OpArgs& args) {
  MUSTER_CHECK(args[0].integer() >= 0, ErrorCode::kInvalidArgument,
               "randperm: n must be non-negative; got {}", args[0].integer());
  return TensorSpec::contiguous({args[0].integer()}, DType::kI64, thread_modes().default_device);
}

void normal_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::normal(outs[0], args[1].number(), args[2].number(), stream_of(args));
}
void uniform_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::uniform(outs[0], args[1].number(), args[2].number(), stream_of(args));
}
void bernoulli_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::bernoulli(outs[0], args[1].number(), stream_of(args));
}
void bernoulli_tensor_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::bernoulli(outs[0], args.tensor(0), stream_of(args));
}
void exponential_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::exponential(outs[0], args[1].number(), stream_of(args));
}
void randint_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::randint(outs[0], args[1].integer(), args[2].integer(), stream_of(args));
}
void randperm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::randperm(outs[0], static_cast<uint64_t>(args[1].integer()),
                static_cast<uint64_t>(args[2].integer()));
}
void dropout_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::dropout(outs[0], args.tensor(0), args[1].number(), stream_of(args));
}

GradList fill_derivative(Context c) { return {zeros_like(c.grad())}; }

GradList dropout_derivative(Context c) {
  static const Op& op = find_op("philox_dropout");
  return {call_one(op, c.grad(), c.arg("p"), c.arg("seed"), c.arg("offset"), c.arg("global_sizes"),
                   c.arg("box_start"))};
}

OpDef fill(const char* schema, KernelFn kernel, const char* sample) {
  return OpDef(schema)
      .infer(self_infer)
      .kernel(DeviceType::kCpu, kernel)
      .only_in_place()
      .derivative(fill_derivative)
      .replicate_only(kBox)
      .samples({sample});
}

// Runs a primitive in-place fill: op(self, numbers.., stream).
template <typename... Numbers>
Tensor run_fill(const Op& op, const Tensor& self, const PhiloxStream& stream,
                const Numbers&... numbers) {
  const auto box = [](const DimVector& dims) { return dims.empty() ? Value() : Value(dims); };
  return call_one(op, self, numbers..., static_cast<int64_t>(stream.seed),
                  static_cast<int64_t>(stream.offset), box(stream.global_sizes),
                  box(stream.box_start));
}

// What follows is made of the primitives; the last argument is the generator.
PhiloxStream next_of(const Value& generator) { return PhiloxStream::next(&generator.generator()); }

void normal_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = normal_(args.tensor(0), args[1].number(), args[2].number(), next_of(args[3]));
}
void uniform_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = uniform_(args.tensor(0), args[1].number(), args[2].number(), next_of(args[3]));
}
void bernoulli_fill_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = bernoulli_(args.tensor(0), args[1].number(), next_of(args[2]));
}
void bernoulli_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("philox_bernoulli");
  outs[0] = run_fill(op, args.tensor(0), next_of(args[1]));
}
void exponential_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("philox_exponential_");
  const double rate = args[1].number();
  MUSTER_CHECK(rate > 0, ErrorCode::kInvalidArgument, "exponential_: rate must be positive; got {}",
               rate);
  outs[0] = run_fill(op, args.tensor(0), next_of(args[2]), rate);
}
void random_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("philox_randint_");
  const int64_t low = args[1].integer(), high = args[2].integer();
  MUSTER_CHECK(low < high, ErrorCode::kInvalidArgument,
               "random_: expects 'from' to be less than 'to'; got from={} >= to={}", low, high);
  outs[0] = run_fill(op, args.tensor(0), next_of(args[3]), low, high);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

void trunc_normal_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const double mean = args[1].number(), std = args[2].number(), a = args[3].number(),
               b = args[4].number();
  MUSTER_CHECK(std > 0 && a <= b, ErrorCode::kInvalidArgument,
               "trunc_normal_: std must be positive and a <= b; got std {}, a {}, b {}", std, a, b);
  const double low = normal_cdf((a - mean) / std), high = normal_cdf((b - mean) / std);
  const NoGradGuard no_grad;
  const Tensor u = uniform_(empty_like(self), 2 * low - 1, 2 * high - 1, next_of(args[5]));
  const Tensor x = add(mul(erfinv(u), std * std::numbers::sqrt2), mean);
  copy_(self, clamp(x, a, b));
  outs[0] = self;
}

DType dtype_or(const Value& value, DType fallback) {
  return value.is_none() ? fallback : value.dtype();
}
OptionalDevice device_of(const Value& value) {
  return value.is_none() ? OptionalDevice() : OptionalDevice(value.device());
}

// (size, dtype, device, generator)
void rand_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor out = empty(args[0].ints(), dtype_or(args[1], kDefaultDType), device_of(args[2]));
  outs[0] = uniform_(out, 0, 1, next_of(args[3]));
}
void randn_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor out = empty(args[0].ints(), dtype_or(args[1], kDefaultDType), device_of(args[2]));
  outs[0] = normal_(out, 0, 1, next_of(args[3]));
}
// (low, high, size, dtype, device, generator)
void randint_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("random_");
  const Tensor out = empty(args[2].ints(), dtype_or(args[3], DType::kI64), device_of(args[4]));
  outs[0] = call_one(op, out, args[0], args[1], args[5]);
}
void randperm_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("philox_randperm");
  const PhiloxStream stream = next_of(args[1]);
  outs[0] =
      call_one(op, args[0], static_cast<int64_t>(stream.seed), static_cast<int64_t>(stream.offset));
}
void rand_like_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = uniform_(empty_like(args.tensor(0)), 0, 1, next_of(args[1]));
}
void randn_like_composite(const OpArgs& args, std::span<Tensor> outs) {
  outs[0] = normal_(empty_like(args.tensor(0)), 0, 1, next_of(args[1]));
}

// (input, p, train, generator)
void dropout_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& input = args.tensor(0);
  const double p = args[1].number();
  MUSTER_CHECK(p >= 0 && p <= 1, ErrorCode::kInvalidArgument,
               "dropout: probability has to be between 0 and 1; got {}", p);
  outs[0] = p == 0 || !args[2].boolean() ? input : dropout(input, p, next_of(args[3]));
}

OpDef drawing(const char* schema, CompositeFn fn, std::vector<std::string> samples) {
  return composed(schema, fn, std::move(samples)).random();
}

void add_primitives(OpTable& table) {
  table.add(
      fill("philox_normal_(Tensor(a!) self, float mean, float std, int seed, int offset, "
           "int[]? global_sizes=None, int[]? box_start=None) -> Tensor(a!)",
           normal_kernel, "f(2,3), 0.0, 1.0, 7, 0, None, None"));
  table.add(
      fill("philox_uniform_(Tensor(a!) self, float low, float high, int seed, int offset, "
           "int[]? global_sizes=None, int[]? box_start=None) -> Tensor(a!)",
           uniform_kernel, "f(2,3), 0.0, 1.0, 7, 0, None, None"));
  table.add(
      fill("philox_bernoulli_(Tensor(a!) self, float p, int seed, int offset, int[]? "
           "global_sizes=None, int[]? box_start=None) -> Tensor(a!)",
           bernoulli_kernel, "f(2,3), 0.5, 7, 0, None, None"));
  table.add(
      fill("philox_exponential_(Tensor(a!) self, float rate, int seed, int offset, int[]? "
           "global_sizes=None, int[]? box_start=None) -> Tensor(a!)",
           exponential_kernel, "f(2,3), 1.0, 7, 0, None, None"));
  table.add(
      fill("philox_randint_(Tensor(a!) self, int low, int high, int seed, int offset, "
           "int[]? global_sizes=None, int[]? box_start=None) -> Tensor(a!)",
           randint_kernel, "i(2,3), 0, 10, 7, 0, None, None"));
  table.add(OpDef("philox_bernoulli(Tensor self, int seed, int offset, int[]? global_sizes=None, "
                  "int[]? box_start=None) -> Tensor")
                .infer(like_infer)
                .kernel(DeviceType::kCpu, bernoulli_tensor_kernel)
                .derivative(fill_derivative)
                .replicate_only(kBox)
                .samples({"u(2,3), 7, 0, None, None"}));
  table.add(OpDef("philox_randperm(int n, int seed, int offset) -> Tensor")
                .infer(randperm_infer)
                .kernel(DeviceType::kCpu, randperm_kernel)
                .not_differentiable("the result does not depend on an input")
                .replicate_only("a permutation is drawn whole")
                .samples({"5, 7, 0"}));
  table.add(OpDef("philox_dropout(Tensor input, float p, int seed, int offset, int[]? "
                  "global_sizes=None, int[]? box_start=None) -> Tensor")
                .infer(dropout_infer)
                .kernel(DeviceType::kCpu, dropout_kernel)
                .derivative(dropout_derivative)
                .replicate_only(kBox)
                .fusion(FusionClass::kPointwise)
                .samples({"f(2,3), 0.5, 7, 0, None, None"}));
}
}  // namespace

MUSTER_DEFINE_OPS(random) {
  add_primitives(table);
  table.add(drawing("normal_(Tensor(a!) self, float mean=0, float std=1, *, Generator? "
                    "generator=None) -> Tensor(a!)",
                    normal_composite, {"f(2,3), 0.0, 1.0, None"})
                .only_in_place());
  table.add(drawing("uniform_(Tensor(a!) self, float from=0, float to=1, *, Generator? "
                    "generator=None) -> Tensor(a!)",
                    uniform_composite, {"f(2,3), 0.0, 1.0, None"})
                .only_in_place());
  table.add(drawing("bernoulli_(Tensor(a!) self, float p=0.5, *, Generator? generator=None) -> "
                    "Tensor(a!)",
                    bernoulli_fill_composite, {"f(2,3), 0.5, None"})
                .only_in_place());
  table.add(drawing("bernoulli(Tensor self, *, Generator? generator=None) -> Tensor",
                    bernoulli_composite, {"u(2,3), None"}));
  table.add(drawing("exponential_(Tensor(a!) self, float rate=1, *, Generator? generator=None) -> "
                    "Tensor(a!)",
                    exponential_composite, {"f(2,3), 1.0, None"})
                .only_in_place());
  table.add(drawing("random_(Tensor(a!) self, int from, int to, *, Generator? generator=None) -> "
                    "Tensor(a!)",
                    random_composite, {"i(2,3), 0, 10, None"})
                .only_in_place());
  table.add(drawing("trunc_normal_(Tensor(a!) self, float mean=0, float std=1, float a=-2, float "
                    "b=2, *, Generator? generator=None) -> Tensor(a!)",
                    trunc_normal_composite, {"f(2,3), 0.0, 1.0, -2.0, 2.0, None"})
                .only_in_place());
  table.add(
      drawing("rand(int[] size, *, ScalarType? dtype=None, Device? device=None, Generator? "
              "generator=None) -> Tensor",
              rand_composite, {"[2,3], None, None, None"}));
  table.add(
      drawing("randn(int[] size, *, ScalarType? dtype=None, Device? device=None, Generator? "
              "generator=None) -> Tensor",
              randn_composite, {"[2,3], None, None, None"}));
  table.add(
      drawing("randint(int low, int high, int[] size, *, ScalarType? dtype=None, Device? "
              "device=None, Generator? generator=None) -> Tensor",
              randint_composite, {"0, 10, [2,3], None, None, None"}));
  table.add(drawing("randperm(int n, *, Generator? generator=None) -> Tensor", randperm_composite,
                    {"5, None"}));
  table.add(drawing("rand_like(Tensor self, *, Generator? generator=None) -> Tensor",
                    rand_like_composite, {"f(2,3), None"}));
  table.add(drawing("randn_like(Tensor self, *, Generator? generator=None) -> Tensor",
                    randn_like_composite, {"f(2,3), None"}));
  table.add(
      drawing("dropout(Tensor input, float p=0.5, bool train=True, *, Generator? "
              "generator=None) -> Tensor",
              dropout_composite, {"f(2,3), 0.5, true, None", "f(2,3), 0.5, false, None"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;
using ops::run_fill;

PhiloxStream PhiloxStream::next(Generator* generator) {
  Generator& source = generator == nullptr ? default_generator() : *generator;
  const uint64_t offset = source.next_offset();
  return {source.seed(), offset, {}, {}};
}

Tensor normal_(const Tensor& self, double mean, double std, Generator* generator) {
  static const Op& op = find_op("normal_");
  return call_one(op, self, mean, std, generator);
}
Tensor normal_(const Tensor& self, double mean, double std, const PhiloxStream& stream) {
  static const Op& op = find_op("philox_normal_");
  MUSTER_CHECK(std >= 0, ErrorCode::kInvalidArgument, "normal_: expects std >= 0; got std={}", std);
  return run_fill(op, self, stream, mean, std);
}
Tensor uniform_(const Tensor& self, double from, double to, Generator* generator) {
  static const Op& op = find_op("uniform_");
  return call_one(op, self, from, to, generator);
}
Tensor uniform_(const Tensor& self, double from, double to, const PhiloxStream& stream) {
  static const Op& op = find_op("philox_uniform_");
  MUSTER_CHECK(from <= to, ErrorCode::kInvalidArgument,
               "uniform_: expects to return a [from, to) range; got from={} > to={}", from, to);
  return run_fill(op, self, stream, from, to);
}
Tensor bernoulli_(const Tensor& self, double p, Generator* generator) {
  static const Op& op = find_op("bernoulli_");
  return call_one(op, self, p, generator);
}
Tensor bernoulli_(const Tensor& self, double p, const PhiloxStream& stream) {
  static const Op& op = find_op("philox_bernoulli_");
  MUSTER_CHECK(p >= 0 && p <= 1, ErrorCode::kInvalidArgument,
               "bernoulli_: expects p to be in [0, 1]; got p={}", p);
  return run_fill(op, self, stream, p);
}
Tensor bernoulli(const Tensor& self, Generator* generator) {
  static const Op& op = find_op("bernoulli");
  return call_one(op, self, generator);
}
Tensor exponential_(const Tensor& self, double rate, Generator* generator) {
  static const Op& op = find_op("exponential_");
  return call_one(op, self, rate, generator);
}
Tensor trunc_normal_(const Tensor& self, double mean, double std, double a, double b,
                     Generator* generator) {
  static const Op& op = find_op("trunc_normal_");
  return call_one(op, self, mean, std, a, b, generator);
}
Tensor random_(const Tensor& self, int64_t low, int64_t high, Generator* generator) {
  static const Op& op = find_op("random_");
  return call_one(op, self, low, high, generator);
}

Tensor rand(Dims size, OptionalDType dtype, OptionalDevice device, Generator* generator) {
  static const Op& op = find_op("rand");
  return call_one(op, size, dtype, device, generator);
}
Tensor randn(Dims size, OptionalDType dtype, OptionalDevice device, Generator* generator) {
  static const Op& op = find_op("randn");
  return call_one(op, size, dtype, device, generator);
}
Tensor randint(int64_t low, int64_t high, Dims size, OptionalDType dtype, OptionalDevice device,
               Generator* generator) {
  static const Op& op = find_op("randint");
  return call_one(op, low, high, size, dtype, device, generator);
}
Tensor randperm(int64_t n, Generator* generator) {
  static const Op& op = find_op("randperm");
  return call_one(op, n, generator);
}
Tensor rand_like(const Tensor& self, Generator* generator) {
  static const Op& op = find_op("rand_like");
  return call_one(op, self, generator);
}
Tensor randn_like(const Tensor& self, Generator* generator) {
  static const Op& op = find_op("randn_like");
  return call_one(op, self, generator);
}

Tensor dropout(const Tensor& input, double p, bool train, Generator* generator) {
  static const Op& op = find_op("dropout");
  return call_one(op, input, p, train, generator);
}
Tensor dropout(const Tensor& input, double p, const PhiloxStream& stream) {
  static const Op& op = find_op("philox_dropout");
  return run_fill(op, input, stream, p);
}
}  // namespace muster
