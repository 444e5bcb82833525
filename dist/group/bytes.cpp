#include "dist/group/bytes.h"

#include <fmt/format.h>

#include <cstring>

namespace muster {
namespace {
// What ranks tell each other first: an ErrorCode, and how many bytes follow.
constexpr int64_t kHeadNumel = 2;

Tensor empty_of(int64_t numel, DType dtype) {
  return empty_from_spec(TensorSpec::contiguous({numel}, dtype));
}

// The bytes, or the text of the error that stands in their place.
const std::string& text_of(const Result<std::string>& own) {
  return own.ok() ? own.value() : own.error().message();
}

Tensor head_of(const Result<std::string>& own) {
  const Tensor head = empty_of(kHeadNumel, DType::kI64);
  head.data<int64_t>()[0] = static_cast<int64_t>(own.ok() ? ErrorCode::kOk : own.error().code());
  head.data<int64_t>()[1] = static_cast<int64_t>(text_of(own).size());
  return head;
}

Tensor bytes_of(const std::string& text) {
  const Tensor bytes = empty_of(static_cast<int64_t>(text.size()), DType::kU8);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string string_of(const Tensor& bytes) {
  if (bytes.numel() == 0) return {};
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

Error error_of(const char* operation, const ProcessGroup& group, int group_rank, int64_t code,
               const std::string& text) {
  return make_error(static_cast<ErrorCode>(code), "{} in group {}: {}: {}", operation, group.name(),
                    rank_name(group_rank, group.global_ranks()[static_cast<size_t>(group_rank)]),
                    text);
}
}  // namespace

Result<std::vector<std::string>> all_gather_bytes(ProcessGroup& group,
                                                  const Result<std::string>& own, Deadline deadline,
                                                  std::source_location site) {
  const Tensor heads = empty_of(group.world_size() * kHeadNumel, DType::kI64);
  MUSTER_TRY(group.all_gather_into_tensor(heads, head_of(own), false, site)->wait(deadline));
  const int64_t* head = heads.data<int64_t>();
  std::vector<Tensor> arrived;
  for (int rank = 0; rank < group.world_size(); ++rank)
    arrived.push_back(empty_of(head[rank * kHeadNumel + 1], DType::kU8));
  MUSTER_TRY(group.all_gather(arrived, bytes_of(text_of(own)), false, site)->wait(deadline));
  std::vector<std::string> all;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    all.push_back(string_of(arrived[static_cast<size_t>(rank)]));
    const int64_t code = head[rank * kHeadNumel];
    if (code != 0) return error_of("all_gather_bytes", group, rank, code, all.back());
  }
  return all;
}

Result<std::string> broadcast_bytes(ProcessGroup& group, const Result<std::string>& own,
                                    int group_src, Deadline deadline, std::source_location site) {
  const bool is_source = group.group_rank() == group_src;
  const Tensor head = is_source ? head_of(own) : empty_of(kHeadNumel, DType::kI64);
  MUSTER_TRY(group.broadcast(head, group_src, false, site)->wait(deadline));
  const int64_t code = head.data<int64_t>()[0];
  const Tensor bytes =
      is_source ? bytes_of(text_of(own)) : empty_of(head.data<int64_t>()[1], DType::kU8);
  MUSTER_TRY(group.broadcast(bytes, group_src, false, site)->wait(deadline));
  if (code != 0) return error_of("broadcast_bytes", group, group_src, code, string_of(bytes));
  return string_of(bytes);
}
}  // namespace muster
