// Saves and loads a state on 2 ranks (threads), beside plain write + fsync and plain read of as
// many bytes by as many threads in the same run. The ratio is what checksums, digests and the
// protocol cost.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/command_line.h"
#include "checkpoint/io/checkpointer.h"
#include "checkpoint/plan/shard_map.h"
#include "core/base/file_system.h"
#include "core/base/time.h"
#include "dist/store/hash_store.h"

namespace {
using namespace muster;              // NOLINT
using namespace muster::checkpoint;  // NOLINT

struct Settings {
  int64_t mb = 256;
  int ranks = 2;
  int repeat = 3;
  std::string dir;
};

// A rank's part of weights and two moments, 12 tensors each, sharded by rows.
struct RankMemory {
  RankMemory(const Settings& settings, int global_rank) {
    constexpr int kTensors = 36;
    const int64_t rows = settings.mb * (int64_t{1} << 20) / kTensors / 4 / 1024;
    for (int i = 0; i < kTensors; ++i) {
      const Dims sizes{rows, 1024};
      boxes.push_back(chunk_box(sizes, 0, global_rank, settings.ranks));
      global_sizes.push_back(sizes);
      bytes.emplace_back(static_cast<size_t>(numel(boxes.back().sizes) * 4));
      uint32_t word = 12345u + static_cast<uint32_t>(global_rank * 100 + i);
      for (size_t at = 0; at + 4 <= bytes.back().size(); at += 4) {
        word = word * 1664525u + 1013904223u;
        std::memcpy(bytes.back().data() + at, &word, 4);
      }
    }
  }
  [[nodiscard]] std::string name(size_t i) const { return fmt::format("layer.{:02}.weight", i); }
  [[nodiscard]] int64_t nbytes() const {
    int64_t total = 0;
    for (const auto& tensor : bytes) total += static_cast<int64_t>(tensor.size());
    return total;
  }
  std::vector<Dims> global_sizes;
  std::vector<Box> boxes;
  std::vector<std::vector<std::byte>> bytes;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Times {
  std::vector<double> wall, cpu;
};

template <typename Body>
void time_ranks(Times& times, int ranks, Body body) {
  const TimePoint start = real_clock().now();
  const double cpu_start = cpu_seconds();
  {
    std::vector<std::jthread> threads;
    for (int global_rank = 0; global_rank < ranks; ++global_rank)
      threads.emplace_back([&body, global_rank] { body(global_rank); });
  }
  times.wall.push_back(to_seconds(real_clock().now() - start));
  times.cpu.push_back(cpu_seconds() - cpu_start);
}

// What `dd conv=fsync` does: large writes, one fsync.
void write_plain(const std::string& path, const RankMemory& memory) {
  constexpr size_t kBlock = size_t{1} << 20;
  const auto file = real_file_system().create(path).value();
  for (const auto& tensor : memory.bytes) {
    for (size_t at = 0; at < tensor.size(); at += kBlock)
      file->append(std::span(tensor).subspan(at, std::min(kBlock, tensor.size() - at))).value();
  }
  file->sync().value();
  file->close().value();
}

void read_plain(const std::string& path, RankMemory& memory) {
  int64_t at = 0;
  for (auto& tensor : memory.bytes) {
    real_file_system().read_at(path, at, tensor).value();
    at += static_cast<int64_t>(tensor.size());
  }
}

struct Numbers {
  Times save, load, write, read;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void declare(CLI::App& app, Settings& settings) {
  app.add_option("--mb", settings.mb, "MiB of state; default 256")->check(bench::count());
  app.add_option("--ranks", settings.ranks, "ranks, each a thread; default 2")
      ->check(bench::count());
  app.add_option("--repeat", settings.repeat, "rounds, of which the median counts; default 3")
      ->check(bench::count());
  app.add_option("--dir", settings.dir, "folder to write in; default a temporary one")
      ->check(CLI::ExistingDirectory);
}

void measure(const Settings& settings, const std::string& dir, std::vector<RankMemory>& memory,
             Numbers& numbers) {
  HashStore store;
  std::vector<std::unique_ptr<Checkpointer>> ranks;
  for (int global_rank = 0; global_rank < settings.ranks; ++global_rank) {
    CheckpointerOptions options;
    options.directory = path_join(dir, "ckpt");
    options.keep = 0;
    options.store = &store;
    options.global_rank = global_rank;
    options.world_size = settings.ranks;
    ranks.push_back(Checkpointer::open(options).value());
  }
  time_ranks(numbers.write, settings.ranks, [&](int r) {
    write_plain(path_join(dir, fmt::format("plain-{}", r)), memory[static_cast<size_t>(r)]);
  });
  time_ranks(numbers.save, settings.ranks, [&](int r) {
    const RankMemory& mine = memory[static_cast<size_t>(r)];
    SaveRequest request;
    for (size_t i = 0; i < mine.bytes.size(); ++i) {
      request.tensors.push_back(
          {mine.name(i), DType::kF32, mine.global_sizes[i], mine.boxes[i], mine.bytes[i], {}});
    }
    ranks[static_cast<size_t>(r)]->save(request).value();
  });
  time_ranks(numbers.read, settings.ranks, [&](int r) {
    read_plain(path_join(dir, fmt::format("plain-{}", r)), memory[static_cast<size_t>(r)]);
  });
  time_ranks(numbers.load, settings.ranks, [&](int r) {
    RankMemory& mine = memory[static_cast<size_t>(r)];
    std::vector<TensorSlot> slots;
    for (size_t i = 0; i < mine.bytes.size(); ++i) {
      slots.push_back(
          {mine.name(i), DType::kF32, mine.global_sizes[i], mine.boxes[i], mine.bytes[i]});
    }
    LoadRequest request;
    request.slots = slots;
    ranks[static_cast<size_t>(r)]->load_latest(request).value();
  });
  const std::vector<std::string> names = real_file_system().list(dir).value();
  for (const std::string& name : names)
    remove_tree(real_file_system(), path_join(dir, name)).value();
}

int run(const Settings& settings) {
  const TempDirectory temporary("bench_checkpoint");
  const std::string dir = settings.dir.empty() ? temporary.path() : settings.dir;
  std::vector<RankMemory> memory;
  int64_t nbytes = 0;
  for (int global_rank = 0; global_rank < settings.ranks; ++global_rank) {
    memory.emplace_back(settings, global_rank);
    nbytes += memory.back().nbytes();
  }
  Numbers numbers;
  for (int i = 0; i < settings.repeat; ++i) measure(settings, dir, memory, numbers);
  const auto rate = [&](const Times& times) {
    return static_cast<double>(nbytes) / median(times.wall) / 1e6;
  };
  const double save = rate(numbers.save);
  const double write = rate(numbers.write);
  const double load = rate(numbers.load);
  const double read = rate(numbers.read);
  fmt::print("{:.0f} MB on {} ranks, median of {}\n", static_cast<double>(nbytes) / 1e6,
             settings.ranks, settings.repeat);
  const auto line = [&](const char* ours, double our_rate, const Times& our_times,
                        const char* plain, double plain_rate, const Times& plain_times) {
    fmt::print("{} {:6.0f} MB/s ({:.2f} s CPU)   {} {:6.0f} MB/s ({:.2f} s CPU)   ratio {:.2f}\n",
               ours, our_rate, median(our_times.cpu), plain, plain_rate, median(plain_times.cpu),
               our_rate / plain_rate);
  };
  line("save", save, numbers.save, "write + fsync", write, numbers.write);
  line("load", load, numbers.load, "read         ", read, numbers.read);
  fmt::print(
      "{{\"bench\":\"checkpoint\",\"mb\":{:.0f},\"ranks\":{},\"save_mb_s\":{:.0f},"
      "\"write_mb_s\":{:.0f},\"save_ratio\":{:.3f},\"load_mb_s\":{:.0f},\"read_mb_s\":{:.0f},"
      "\"load_ratio\":{:.3f}}}\n",
      static_cast<double>(nbytes) / 1e6, settings.ranks, save, write, save / write, load, read,
      load / read);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Saves and loads a state, beside plain writes and reads of as many bytes.",
               "bench_checkpoint");
  Settings settings;
  declare(app, settings);
  if (const std::optional<int> status = bench::parse(app, argc, argv)) return *status;
  return bench::guarded(app, [&] { return run(settings); });
}
