#include "train/last_words.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "core/base/log.h"
#include "dist/group/waits.h"

namespace muster {
namespace {
// Shorter waits are everyday life.
constexpr Duration kLongWait = 1s;
// Who is late is looked at this often.
constexpr timespec kLookEvery{.tv_sec = 0, .tv_nsec = 500'000'000};
// For a thread whose wait has just ended to say why.
constexpr Duration kPatience = 1s;

struct Speech {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_spoken = false;  // guarded by mutex
};
// Never destroyed: threads use it while the process ends.
Speech& speech() {
  static Speech& instance = *new Speech;
  return instance;
}

sigset_t only_sigterm() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

void end_by_sigterm() {
  std::signal(SIGTERM, SIG_DFL);
  const sigset_t set = only_sigterm();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(SIGTERM);
}

// Whoever speaks by itself ends by itself.
void on_sigterm(const WorkerEnv& env) {
  std::unique_lock lock(speech().mutex);
  const std::vector<LongWait> waits = long_waits(kLongWait);
  const bool has_heard =
      std::any_of(waits.begin(), waits.end(), [](const LongWait& wait) { return wait.is_over; });
  if (has_heard) speech().changed.wait_for(lock, kPatience, [] { return speech().has_spoken; });
  if (speech().has_spoken) return;
  if (!waits.empty()) {
    std::vector<std::string> texts;
    for (const LongWait& wait : waits) texts.push_back(wait.text);
    const Error error =
        make_error(ErrorCode::kAborted, "ended by SIGTERM: {}", fmt::join(texts, "; "));
    MUSTER_LOG(kWarn, "{}", error.what());
    write_error_file(env, error);
  }
  end_by_sigterm();
}
}  // namespace

void await_last_words(const WorkerEnv& env) {
  const sigset_t set = only_sigterm();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // other threads inherit it
  std::thread([env, set] {
    while (sigtimedwait(&set, nullptr, &kLookEvery) != SIGTERM)
      static_cast<void>(long_waits(kLongWait));
    on_sigterm(env);
  }).detach();
}

void say_last_words(const WorkerEnv& env, const Error& error) {
  const std::lock_guard lock(speech().mutex);
  speech().has_spoken = true;
  speech().changed.notify_all();
  // The rank that was waited for may not be the one that the wait ended with.
  std::string message = error.message();
  for (const LongWait& wait : long_waits(kLongWait)) message += "\n  " + wait.text;
  Error whole(error.code(), std::move(message));
  for (const std::string& line : error.context()) whole.add_context(line);
  MUSTER_LOG(kError, "{}", whole.what());
  write_error_file(env, whole);
}
}  // namespace muster
