#pragma once
/// What a worker says before it ends: by itself, or because its launcher ends the attempt.
///
/// When one rank fails, the launcher ends the others, who often know as much: whom they have waited
/// for. SIGTERM therefore goes to a thread of its own, which writes that down and lets the process
/// end by the signal.

#include "train/worker_env.h"

namespace muster {

/// Starts the thread. Called once, before any other thread is started.
void await_last_words(const WorkerEnv& env);

/// Logs the error and writes the error file. Afterwards SIGTERM is ignored: this process ends by
/// itself. @thread any
void say_last_words(const WorkerEnv& env, const Error& error);

}  // namespace muster
