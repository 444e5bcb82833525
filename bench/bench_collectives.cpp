// Collectives between processes. Each rank is a forked process; buffers lie in the communication
// arena where there is one. memcpy is timed on as many processes at once. The last line is JSON.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/command_line.h"
#include "core/base/file_system.h"
#include "dist/backends/backends.h"
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

struct Job {
  std::string backend;
  int world = 2;
  std::string store_path;
  int report_fd = -1;  // rank 0 writes its rows there as JSON
};

int run_rank(int rank, const Job& job) {
  const Deadline deadline = Deadline::after(120s);
  const int world = job.world;
  FileStoreOptions file;
  file.path = job.store_path;
  BackendOptions backend;
  backend.store = FileStore::open(file).value();
  backend.global_rank = rank;
  backend.world_size = world;
  ProcessGroup::Options options;
  options.group_rank = rank;
  options.timeout = 60s;
  for (int r = 0; r < world; ++r) options.global_ranks.push_back(r);
  ProcessGroup group(options, open_backend(job.backend, std::move(backend), deadline).value());
  Allocator& arena = group.communication_allocator();
  nlohmann::json rows = nlohmann::json::array();
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
    const double copy = time([&] { std::memcpy(to.data(), from.data(), from.size()); });
    if (rank != 0) continue;
    std::printf(
        "%-5s %9lld B  all_reduce %9.2f us  all_gather %9.2f us  reduce_scatter %9.2f us  memcpy "
        "%9.2f us\n",
        job.backend.c_str(), static_cast<long long>(nbytes), all_reduce, all_gather, reduce_scatter,
        copy);
    rows.push_back({{"nbytes", nbytes},
                    {"all_reduce_us", all_reduce},
                    {"all_gather_us", all_gather},
                    {"reduce_scatter_us", reduce_scatter},
                    {"memcpy_us", copy}});
  }
  std::fflush(stdout);
  const std::string text = rows.dump();
  if (rank == 0 && ::write(job.report_fd, text.data(), text.size()) < 0) return 1;
  return 0;
}

// All ranks of one backend; the rows of rank 0.
nlohmann::json run_job(Job job) {
  int pipe_fds[2];
  if (::pipe(pipe_fds) != 0) throw_error(ErrorCode::kIo, "pipe: {}", errno_text(errno));
  job.report_fd = pipe_fds[1];
  std::vector<pid_t> pids;
  for (int rank = 0; rank < job.world; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run_rank(rank, job));
    pids.push_back(pid);
  }
  ::close(pipe_fds[1]);
  std::string text;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = ::read(pipe_fds[0], buffer, sizeof(buffer))) > 0)
    text.append(buffer, static_cast<size_t>(n));
  ::close(pipe_fds[0]);
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    MUSTER_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, ErrorCode::kInternal,
                 "a rank over {} must end with 0; got status {}", job.backend, status);
  }
  return nlohmann::json::parse(text);
}

// "gloo is 150.2 times shm": one row a size, for the three operations.
void compare(const char* what, const nlohmann::json& slow, const nlohmann::json& fast) {
  for (size_t i = 0; i < std::min(slow.size(), fast.size()); ++i) {
    std::printf("%-22s %9lld B", what, static_cast<long long>(fast[i]["nbytes"]));
    for (const char* operation : {"all_reduce", "all_gather", "reduce_scatter"}) {
      const std::string key = std::string(operation) + "_us";
      std::printf("  %s %7.2fx", operation,
                  slow[i][key].get<double>() / fast[i][key].get<double>());
    }
    std::printf("\n");
  }
}

struct Options {
  int ranks = 2;
  std::string backend = "shm";
  std::string rival;
};

int run(const Options& options) {
  Job job;
  job.world = options.ranks;
  const std::string& chosen = options.backend;
  const TempDirectory directory;
  nlohmann::json result = {{"ranks", job.world}};
  for (const char* backend : {"shm", "gloo"}) {
    if (chosen != "both" && chosen != backend) continue;
    job.backend = backend;
    job.store_path = directory.file(std::string("store_") + backend);
    result["backends"][backend] = run_job(job);
  }
  nlohmann::json& rows = result["backends"];
  if (chosen == "both") compare("gloo / shm", rows["gloo"], rows["shm"]);
  if (!options.rival.empty()) {
    std::ifstream file(options.rival);
    std::string line, last;
    while (std::getline(file, line)) last = line;
    const nlohmann::json rival = nlohmann::json::parse(last)["sizes"];
    for (const auto& [backend, own] : rows.items())
      compare(("c10d gloo / " + backend).c_str(), rival, own);
    result["rival"] = rival;
  }
  std::printf("%s\n", result.dump().c_str());
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures collectives between processes of this machine.", "bench_collectives");
  Options options;
  app.add_option("--ranks", options.ranks, "processes; default 2")->check(bench::count());
  app.add_option("--backend", options.backend, "shm, gloo or both; default shm")
      ->check(CLI::IsMember({"shm", "gloo", "both"}));
  app.add_option("--rival", options.rival,
                 "what rivals/torch_gloo.py printed: times are also given as multiples of its")
      ->check(CLI::ExistingFile);
  if (const std::optional<int> status = bench::parse(app, argc, argv)) return *status;
  return bench::guarded(app, [&] { return run(options); });
}
