#include "dist/group/work.h"

#include <fmt/format.h>

namespace muster {

std::string_view to_string(CollectiveKind kind) noexcept {
  constexpr std::string_view kNames[kNumCollectiveKinds] = {
      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather",
      "scatter",    "all_to_all", "send",           "recv",      "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(ReduceOp op) noexcept {
  constexpr std::string_view kNames[] = {"sum", "avg",  "product", "min",
                                         "max", "band", "bor",     "bxor"};
  return kNames[static_cast<size_t>(op)];
}

std::string WorkDescriptor::describe() const {
  std::string text =
      fmt::format("{} #{} {}{}", to_string(kind), seq, dtype, to_string(Dims(sizes)));
  if (kind == CollectiveKind::kBarrier) text = fmt::format("barrier #{}", seq);
  if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
      kind == CollectiveKind::kReduce) {
    text += fmt::format(" {}", to_string(op));
  }
  if (peer != kNoPeer) text += fmt::format(" peer {}", peer);
  if (!label.empty()) text += fmt::format(" for {}", label);
  return text + fmt::format(" in group {} at {}:{}", group, file, line);
}
}  // namespace muster
