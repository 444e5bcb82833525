// shm collectives between processes against memcpy: bench_collectives [--ranks N]. The last line is
// JSON. Each rank is a forked process; buffers lie in the communication arena. "bound" is the time
// that memcpy needs, on as many processes at once, for the bytes that each rank must move.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "dist/backend/shm/shm_backend.h"
#include "dist/group/process_group.h"
#include "dist/store/file_store.h"

namespace {
using namespace muster;  // NOLINT(google-build-using-namespace): a main file

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Body>
double median_us(ProcessGroup& group, int rounds, const Body& body) {
  std::vector<double> times;
  for (int round = 0; round < rounds + 3; ++round) {
    group.run(group.barrier());
    const TimePoint start = real_clock().now();
    body();
    if (round >= 3) times.push_back(to_seconds(real_clock().now() - start) * 1e6);
  }
  return median(std::move(times));
}

// Back to back, without a barrier between: what a small operation costs in a row.
template <typename Body>
double row_us(int rounds, const Body& body) {
  for (int round = 0; round < 100; ++round) body();
  const TimePoint start = real_clock().now();
  for (int round = 0; round < rounds; ++round) body();
  return to_seconds(real_clock().now() - start) * 1e6 / rounds;
}

int run_rank(int rank, int world, const std::string& path) {
  const Deadline deadline = Deadline::after(120s);
  FileStoreOptions file;
  file.path = path;
  std::shared_ptr<Store> store = FileStore::open(file).value();
  ProcessGroup::Options options;
  options.group_rank = rank;
  options.timeout = 60s;
  for (int r = 0; r < world; ++r) options.global_ranks.push_back(r);
  ProcessGroup group(
      options,
      ShmBackend::open_world({.store = store, .global_rank = rank, .world_size = world}, deadline)
          .value());
  Allocator& arena = group.communication_allocator();
  std::string json;
  for (const int64_t nbytes : {64L, 4096L, 65536L, 1L << 20, 16L << 20, 64L << 20}) {
    const int64_t count = nbytes / 4;
    const Tensor whole = empty_from_spec(TensorSpec::contiguous({count}, DType::kF32), &arena);
    const Tensor piece = empty_from_spec(
        TensorSpec::contiguous({std::max<int64_t>(count / world, 1)}, DType::kF32), &arena);
    const Tensor gathered =
        empty_from_spec(TensorSpec::contiguous({piece.numel() * world}, DType::kF32), &arena);
    std::memset(whole.data_ptr(), 0, static_cast<size_t>(nbytes));
    std::memset(piece.data_ptr(), 0, static_cast<size_t>(piece.nbytes()));
    std::memset(gathered.data_ptr(), 0, static_cast<size_t>(gathered.nbytes()));
    std::vector<char> from(static_cast<size_t>(nbytes), 1), to(static_cast<size_t>(nbytes), 2);
    const int rounds = nbytes > (1 << 20) ? 15 : 200;
    const auto time = [&](const auto& body) {
      return nbytes <= 4096 ? row_us(5000, body) : median_us(group, rounds, body);
    };
    const double all_reduce = time([&] { group.run(group.all_reduce(whole)); });
    const double all_gather =
        time([&] { group.run(group.all_gather_into_tensor(gathered, piece)); });
    const double reduce_scatter =
        time([&] { group.run(group.reduce_scatter_tensor(piece, gathered)); });
    // all_reduce: a rank reads all ranks' stretches (one buffer's worth) and writes one buffer's
    // worth.
    const double copy = time([&] { std::memcpy(to.data(), from.data(), from.size()); });
    if (rank == 0) {
      std::printf(
          "%9lld B  all_reduce %9.2f us  all_gather %9.2f us  reduce_scatter %9.2f us  memcpy "
          "%9.2f us\n",
          static_cast<long long>(nbytes), all_reduce, all_gather, reduce_scatter, copy);
      json += fmt::format(
          "{}{{\"nbytes\": {}, \"all_reduce_us\": {:.3f}, \"all_gather_us\": {:.3f}, "
          "\"reduce_scatter_us\": {:.3f}, \"memcpy_us\": {:.3f}}}",
          json.empty() ? "" : ", ", nbytes, all_reduce, all_gather, reduce_scatter, copy);
    }
  }
  if (rank == 0) std::printf("{\"ranks\": %d, \"sizes\": [%s]}\n", world, json.c_str());
  std::fflush(stdout);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  int world = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--ranks") world = std::stoi(argv[i + 1]);
  }
  const TempDirectory directory;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run_rank(rank, world, directory.file("store")));
    pids.push_back(pid);
  }
  int worst = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
  }
  return worst;
}
