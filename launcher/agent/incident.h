#pragma once
/// What went wrong in an attempt: a record for machines and a table for people.
///
/// The first failure is the cause, every other rank that did not finish is collateral. Records are
/// numbered and never overwritten, over all runs in a folder. Not a log: it holds the last lines
/// only.

#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/agent/job_plan.h"
#include "launcher/agent/log_pump.h"
#include "launcher/agent/worker_env.h"
#include "launcher/agent/worker_group.h"
#include "launcher/rendezvous/decide.h"

namespace muster {

/// All that is known when an attempt has failed and nothing of it runs any more.
struct Incident {
  const JobPlan* plan = nullptr;
  AttemptInfo info;
  Decision decision;
  int cause_rank = -1;           ///< local rank; -1 when the cause is none of this node's
  int64_t cause_elsewhere = -1;  ///< global rank on another node; -1 when it is none's
  const std::vector<Worker>* workers = nullptr;
  const LogPump* logs = nullptr;
  TimePoint started_at{};
};

/// Writes `directory`/incident-<n>.json with the first free n; returns the path.
/// @error kIo
Result<std::string> write_incident(const std::string& directory, const Incident& incident);

/// Writes `directory`/incident-generation<g>-node<group rank>.json, which adds this node's ranks to
/// a record that another node has written; returns the path.
/// @error kIo
Result<std::string> write_node_record(const std::string& directory, const Incident& incident);

/// True when a worker of this node said something about its own failure.
bool has_error_files(const Incident& incident);

/// The table for stderr. `record` is the path of the record, "" without one.
std::string incident_summary(const Incident& incident, const std::string& record);

/// What a worker said about its own failure in TORCHELASTIC_ERROR_FILE.
struct ErrorFile {
  bool found = false;
  std::string message;  ///< the message, or the file's text when it has another form
  std::string stack;
};

/// Reads an error file; any content is accepted.
ErrorFile read_error_file(const std::string& path);

/// Copies the cause's error file to the launcher's own TORCHELASTIC_ERROR_FILE, with its exit
/// status as "errorCode", when both exist.
/// @source torchrun, which nests under itself that way
void pass_on_error_file(const Incident& incident);

}  // namespace muster
