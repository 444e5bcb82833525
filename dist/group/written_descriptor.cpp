#include "dist/group/written_descriptor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/result.h"

namespace muster {
namespace {
template <size_t N>
void write_text(std::array<char, N>& to, std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

// The peer's memory: never trust a terminator.
template <size_t N>
std::string read_text(const std::array<char, N>& from) {
  return {from.data(), ::strnlen(from.data(), N)};
}
}  // namespace

void WrittenDescriptor::write(const WorkDescriptor& from) {
  contract = from.contract;
  seq = from.seq;
  kind = from.kind;
  op = from.op;
  dtype = from.dtype;
  peer = from.peer;
  line = from.line;
  ndim = static_cast<int8_t>(std::min<size_t>(from.sizes.size(), kMaxWrittenDims));
  std::copy_n(from.sizes.begin(), ndim, sizes.begin());
  write_text(file, from.file);
  write_text(label, from.label);
}

std::string WrittenDescriptor::describe(const std::string& group) const {
  const std::string path = read_text(file);
  WorkDescriptor copy;
  copy.kind = kind;
  copy.op = op;
  copy.dtype = dtype;
  copy.peer = peer;
  copy.group = group;
  copy.seq = seq;
  copy.line = line;
  copy.file = path.c_str();
  copy.label = read_text(label);
  for (int i = 0; i < std::clamp<int>(ndim, 0, kMaxWrittenDims); ++i)
    copy.sizes.push_back(sizes[static_cast<size_t>(i)]);
  return copy.describe();
}

namespace {
Error diverged(const std::string& group_name, int group_size, const ContractSide& mine,
               const ContractSide& theirs, const std::string& detail) {
  return make_error(ErrorCode::kMismatch,
                    "{} #{} in group {} ({} ranks): ranks diverged{}\n  {}: {}\n  {}: {}",
                    to_string(mine.descriptor.kind), mine.descriptor.seq, group_name, group_size,
                    detail, mine.rank_name, mine.descriptor.describe(group_name), theirs.rank_name,
                    theirs.descriptor.describe(group_name));
}
}  // namespace

std::optional<Error> compare_contracts(const std::string& group_name, int group_size,
                                       const ContractSide& mine, const ContractSide& theirs) {
  if (mine.descriptor.contract == theirs.descriptor.contract) return std::nullopt;
  return diverged(group_name, group_size, mine, theirs, "");
}

std::optional<Error> compare_pieces(const std::string& group_name, int group_size,
                                    const ContractSide& mine, const ContractSide& theirs,
                                    PieceSizes own, PieceSizes other) {
  const auto differ = [&](const std::string& from, const std::string& to, int64_t sends,
                          int64_t expects) {
    return diverged(
        group_name, group_size, mine, theirs,
        fmt::format("; {} sends {} bytes to {}, which expects {}", from, sends, to, expects));
  };
  if (own.sends_nbytes != other.expects_nbytes) {
    return differ(mine.rank_name, theirs.rank_name, own.sends_nbytes, other.expects_nbytes);
  }
  if (other.sends_nbytes != own.expects_nbytes) {
    return differ(theirs.rank_name, mine.rank_name, other.sends_nbytes, own.expects_nbytes);
  }
  return std::nullopt;
}
}  // namespace muster
