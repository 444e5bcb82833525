#pragma once
/// Operations so small that each rank's contribution travels inside its announcement.

#include <span>
#include <string>
#include <string_view>

#include "dist/group/backend.h"

namespace muster::wire {

inline constexpr int64_t kInlineNbytes = 4096;

/// Decided by what ranks agree on, so that all take the same path.
bool is_inline(const CollectiveRequest& request, int group_size);
/// What this rank's announcement to `peer` carries.
std::string inline_contribution(const CollectiveRequest& request, int own_rank, int peer);
/// How many bytes `peer` must have put into its own to this rank.
int64_t expected_contribution_nbytes(const CollectiveRequest& request, int own_rank, int peer);
/// Does the operation; `contributions` by group rank, this rank's own entry unused.
void run_inline(const CollectiveRequest& request, int own_rank,
                std::span<const std::string_view> contributions);

}  // namespace muster::wire
