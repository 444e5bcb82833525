#pragma once
/// A backend without peers: every other rank is imagined to hold what this rank holds.
///
/// Planning and tests run one rank of any world with it: shapes, call counts and control flow are
/// real, values are not those of a real job (a sum is W times the own tensor). Nothing is received:
/// recv leaves zeros.

#include "dist/group/backend.h"

namespace muster {

class FakeBackend final : public Backend {
 public:
  FakeBackend(int group_rank, int group_size) : group_rank_(group_rank), group_size_(group_size) {}

  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] BackendAbilities abilities() const override { return {}; }
  [[nodiscard]] std::shared_ptr<Work> launch(CollectiveRequest request) override;
  void abort(const std::string& reason) override;
  [[nodiscard]] Allocator& communication_allocator() override { return cpu_allocator(); }
  [[nodiscard]] Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                          Deadline deadline) override;

 private:
  int group_rank_;
  int group_size_;
  std::string aborted_because_;
};

}  // namespace muster
