#pragma once
/// A WorkDescriptor as bytes that another process reads, and the contract check between two ranks.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "dist/group/work.h"

namespace muster {

inline constexpr int kMaxWrittenDims = 8;

/// A WorkDescriptor without pointers, for a peer's error message.
struct WrittenDescriptor {
  uint64_t contract = 0;
  uint64_t seq = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  int8_t ndim = 0;
  int32_t peer = kNoPeer;
  uint32_t line = 0;
  std::array<int64_t, kMaxWrittenDims> sizes{};
  std::array<char, 96> file{};
  std::array<char, 64> label{};

  void write(const WorkDescriptor& from);
  /// For messages about `group`.
  [[nodiscard]] std::string describe(const std::string& group) const;
};

/// One rank's side of a comparison.
struct ContractSide {
  const WrittenDescriptor& descriptor;
  std::string rank_name;  ///< "group rank 1 (global 3)"
};

/// What one rank of a pair gives to the other in an all_to_all, and what it expects of it.
struct PieceSizes {
  int64_t sends_nbytes = 0;
  int64_t expects_nbytes = 0;
};

/// Nothing if both sides launched the same; else kMismatch with both descriptors and call sites.
std::optional<Error> compare_contracts(const std::string& group_name, int group_size,
                                       const ContractSide& mine, const ContractSide& theirs);
/// Splits differ by rank, so each pair compares its own: nothing, or kMismatch as above.
std::optional<Error> compare_pieces(const std::string& group_name, int group_size,
                                    const ContractSide& mine, const ContractSide& theirs,
                                    PieceSizes own, PieceSizes other);

}  // namespace muster
