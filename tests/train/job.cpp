#include "tests/train/job.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace muster {
std::string binary(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

Ended shell(const std::string& command) {
  Ended ended;
  FILE* pipe = ::popen(("timeout -k 5 120 sh -c '" + command + "' 2>&1 < /dev/null").c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe))
    ended.output.append(buffer, n);
  const int raw = ::pclose(pipe);
  ended.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  return ended;
}

EndToEnd::EndToEnd() {
  std::ofstream text(directory_.file("corpus.txt"));
  for (int i = 0; i < 400; ++i)
    text << "line " << i * i << " of a text that repeats itself and counts\n";
  std::ofstream(directory_.file("tiny.yaml"))
      << "recipe: 1\n"
         "run:        {name: tiny, dir: "
      << dir("run")
      << "}\n"
         "model:      {kind: gpt, layers: 2, dim: 32, heads: 2, vocab: 256, sequence: 32, "
         "dropout: 0.1}\n"
         "data:       {kind: text, files: [\""
      << directory_.file("corpus.txt")
      << "\"], seed: 1}\n"
         "optimizer:  {kind: adamw, lr: 3e-3, warmup: 2}\n"
         "train:      {steps: 20, seed: 3, global_batch: 8, microbatch: 2}\n"
         "checkpoint: {every: 5, keep: 3}\n"
         "dist:       {backend: shm, timeout: 20 s}\n";
}

Ended EndToEnd::run(const std::string& options, const std::string& overrides,
                    const std::string& environment) {
  return shell(fmt::format("{} {} run {} {} {}", environment, binary("muster"), options, recipe(),
                           overrides));
}

Ended EndToEnd::drill(const std::string& faults, const std::string& expect,
                      const std::string& launch) {
  std::ofstream(directory_.file("drill.yaml")) << "recipe: tiny.yaml\n"
                                               << launch << "\nfaults:\n"
                                               << faults << "expect: " << expect << "\n";
  // What a drill that fails keeps goes with the test.
  return shell(fmt::format("TMPDIR={} {} drill --quiet --json {} {}", directory_.path(),
                           binary("muster"), dir("drill.json"), dir("drill.yaml")));
}

std::vector<EndToEnd::json> EndToEnd::lines(const std::string& path) {
  std::vector<json> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) result.push_back(json::parse(line));
  return result;
}

}  // namespace muster
