// What a node tells about itself on the job's socket.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "launcher/agent/local_node.h"
#include "launcher/agent/node_options.h"
#include "launcher/agent/runtime_folder.h"

namespace muster {
namespace {
using nlohmann::ordered_json;

ordered_json describe_worker(const AttemptInfo& info, const Worker& worker) {
  return {{"global_rank", info.place.first_rank + worker.local_rank},
          {"local_rank", worker.local_rank},
          {"pid", worker.pid},
          {"state", worker.exit ? worker.exit->text() : "running"}};
}
}  // namespace

void LocalNode::serve_status(std::function<void(ordered_json&)> describe) {
  describe_ = std::move(describe);
  const Result<std::string> folder = runtime_folder();
  if (!folder.ok()) {
    MUSTER_LOG(kDebug, "no status of this job: {}", folder.error().what());
    return;
  }
  Result<std::unique_ptr<StatusSocket>> opened = StatusSocket::open(
      loop_, path_join(*folder, plan_.token_id + ".sock"), [this] { return status_text(); });
  if (opened.ok()) {
    status_ = std::move(opened).value();
  } else {
    MUSTER_LOG(kDebug, "no status of this job: {}", opened.error().what());
  }
}

std::string LocalNode::status_text() const {
  const JobSpec& spec = plan_.spec;
  ordered_json json;
  json["format"] = 1;
  json["run_id"] = spec.run_id;
  json["job"] = spec.title;
  json["id"] = plan_.token_id;
  json["node"] = node_options(spec).name;
  json["agent"] = ::getpid();
  json["state"] = !has_started_ ? "forming" : stopping_ ? "stopping" : "running";
  json["seconds"] = to_seconds(real_clock().now() - began_at_);
  json["generation"] = info_.generation;
  json["attempt"] = info_.attempt;
  json["failures"] = info_.failures;
  json["max_restarts"] = spec.policy.max_restarts;
  json["group_rank"] = info_.place.group_rank;
  json["group_world_size"] = info_.place.group_world_size;
  json["world_size"] = has_started_ ? info_.place.world_size : 0;
  json["run_dir"] = spec.is_recipe ? plan_.run_dir : "";
  json["log_dir"] = keeps_logs(plan_) ? plan_.log_dir : "";
  json["incident"] = incident_path_;
  json["ranks"] = ordered_json::array();
  if (group_ != nullptr) {
    for (const Worker& worker : group_->workers()) {
      json["ranks"].push_back(describe_worker(info_, worker));
    }
  }
  describe_(json);
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace muster
