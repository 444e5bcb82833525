#pragma once
/// What main does in a bench whose measurements are registered with Google Benchmark.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>

#include "core/base/error.h"

namespace muster::bench {

/// BENCHMARK_MAIN(), but a wrong command line exits 64 as everywhere here.
inline int run_registered(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") != 0) continue;
    std::printf("usage: %s [OPTION]..., with the options of Google Benchmark:\n", argv[0]);
    std::fflush(stdout);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return exit_status(ErrorCode::kInvalidArgument);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace muster::bench
