#include "launcher/cli/rendezvous_options.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "launcher/agent/random_id.h"
#include "launcher/agent/runtime_folder.h"
#include "launcher/cli/option_values.h"

namespace muster {
namespace {
using Role = JobSpec::Rendezvous::Role;

constexpr int kDefaultPort = 29400;        // torchrun's for c10d
constexpr int kDefaultMasterPort = 29500;  // torchrun's for static
constexpr size_t kLeastTokenNbytes = 16;

struct Endpoint {
  std::string host;
  std::optional<int> port;
};

using Conf = std::map<std::string, std::string, std::less<>>;

Result<void> take_counts(const RunArguments& arguments, JobSpec& spec) {
  constexpr std::string_view kForm = "N or MIN:MAX with 0 < MIN <= MAX";
  const std::string text = arguments.value("nnodes").value_or("1:1");
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() > 2) return wrong_option("nnodes", kForm, text);
  NodesPolicy& nodes = spec.policy.nodes;
  nodes.min_nodes = MUSTER_TRY(parse_int_option("nnodes", parts[0], 1, kAnyInt, kForm));
  nodes.max_nodes = nodes.min_nodes;
  if (parts.size() == 2) {
    nodes.max_nodes = MUSTER_TRY(parse_int_option("nnodes", parts[1], 1, kAnyInt, kForm));
  }
  if (nodes.max_nodes < nodes.min_nodes) return wrong_option("nnodes", kForm, text);
  return {};
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos && text.find(']', colon) == std::string::npos &&
                        (text.find(':') == colon || text.starts_with('['));
  endpoint.host = has_port ? text.substr(0, colon) : text;
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  if (has_port) {
    endpoint.port = MUSTER_TRY(parse_int_option("rdzv-endpoint", text.substr(colon + 1), 0,
                                                kMaxPort, "HOST:PORT with a port up to 65535"));
  }
  return endpoint;
}

// torchrun's keys that mean nothing here, because nothing is polled and no store is shared.
constexpr std::array kUnusedConf = {"close_timeout", "heartbeat_timeout", "read_timeout",
                                    "store_type",    "timeout",           "rank"};
constexpr std::array kUsedConf = {
    "join_timeout", "last_call_timeout",      "lease",       "keep_alive_interval",
    "is_host",      "keep_alive_max_attempt", "control_port"};

Result<Conf> parse_conf(const RunArguments& arguments) {
  Conf conf;
  const std::string text = arguments.value("rdzv-conf").value_or("");
  if (text.empty()) return conf;
  std::vector<std::string> known(kUsedConf.begin(), kUsedConf.end());
  known.insert(known.end(), kUnusedConf.begin(), kUnusedConf.end());
  for (const std::string& pair : split(text, ',')) {
    const size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == pair.size()) {
      return wrong_option("rdzv-conf", "KEY=VALUE,...", text);
    }
    const std::string key(trim(pair.substr(0, equals)));
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string nearest = nearest_name(key, known);
      return make_error(ErrorCode::kInvalidArgument, "--rdzv-conf: no such key \"{}\"{}", key,
                        nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?");
    }
    conf[key] = trim(pair.substr(equals + 1));
  }
  return conf;
}

Result<std::optional<Duration>> seconds_of(const Conf& conf, const char* key) {
  const auto found = conf.find(key);
  if (found == conf.end()) return std::optional<Duration>();
  const Result<Duration> duration = parse_duration(found->second);
  if (!duration.ok() || *duration <= Duration(0)) {
    return wrong_option("rdzv-conf", std::string(key) + "=SECONDS above 0", found->second);
  }
  return std::optional<Duration>(*duration);
}

Result<void> take_times(const Conf& conf, NodesPolicy& nodes) {
  nodes.join_limit = MUSTER_TRY(seconds_of(conf, "join_timeout")).value_or(nodes.join_limit);
  nodes.last_call = MUSTER_TRY(seconds_of(conf, "last_call_timeout")).value_or(nodes.last_call);
  const auto interval = MUSTER_TRY(seconds_of(conf, "keep_alive_interval"));
  const auto attempts = conf.find("keep_alive_max_attempt");
  if (interval || attempts != conf.end()) {
    const int count = attempts == conf.end()
                          ? 3
                          : MUSTER_TRY(parse_int_option("rdzv-conf", attempts->second, 1, 1 << 20,
                                                        "keep_alive_max_attempt=N above 0"));
    nodes.lease = interval.value_or(5s) * count;
  }
  nodes.lease = MUSTER_TRY(seconds_of(conf, "lease")).value_or(nodes.lease);
  if (nodes.lease < 100ms) {
    return wrong_option("rdzv-conf", "lease=SECONDS of 0.1 or more", format_duration(nodes.lease));
  }
  if (nodes.lease >= nodes.join_limit) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--rdzv-conf: lease must be shorter than join_timeout; got {} and {}",
                      format_duration(nodes.lease), format_duration(nodes.join_limit));
  }
  return {};
}

Result<Role> role_of(const Conf& conf) {
  const auto found = conf.find("is_host");
  if (found == conf.end()) return Role::kAuto;
  const std::string& text = found->second;
  if (text == "1" || text == "true" || text == "True") return Role::kHost;
  if (text == "0" || text == "false" || text == "False") return Role::kMember;
  return wrong_option("rdzv-conf", "is_host=true or false", text);
}

// One store and one address for workers, as static has it, and a port beside it for the agents.
Result<void> take_static(const RunArguments& arguments, const Conf& conf, const Endpoint& endpoint,
                         JobSpec& spec) {
  if (!arguments.value("node-rank")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--node-rank: must be given on each of several nodes with --rdzv-backend "
                      "static; got none\n  fix: give it, or use --rdzv-backend c10d with "
                      "--rdzv-endpoint HOST:PORT");
  }
  const bool is_placed =
      arguments.value("master-addr") || arguments.value("master-port") || !endpoint.host.empty();
  if (!is_placed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--master-addr: must be given with several nodes, or --rdzv-endpoint; got "
                      "neither");
  }
  JobSpec::Rendezvous& rendezvous = spec.rendezvous;
  if (!endpoint.host.empty()) {
    spec.master_addr = endpoint.host;
    spec.master_port = endpoint.port.value_or(kDefaultMasterPort);
  } else if (spec.master_port == 0) {
    spec.master_port = kDefaultMasterPort;
  }
  rendezvous.host = spec.master_addr;
  rendezvous.port = spec.master_port + 1;
  if (const auto found = conf.find("control_port"); found != conf.end()) {
    rendezvous.port =
        MUSTER_TRY(parse_int_option("rdzv-conf", found->second, 1, kMaxPort, "control_port=PORT"));
  }
  rendezvous.role = rendezvous.node_rank == 0 ? Role::kHost : Role::kMember;
  return {};
}

Result<void> take_dynamic(const RunArguments& arguments, const Conf& conf, const Endpoint& endpoint,
                          JobSpec& spec) {
  if (endpoint.host.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--rdzv-endpoint: must be given with several nodes; got none");
  }
  if (arguments.value("master-addr") || arguments.value("master-port")) {
    MUSTER_LOG(kWarn,
               "--master-addr and --master-port count for --rdzv-backend static only; the workers "
               "get those of the rendezvous");
  }
  spec.master_port = 0;
  spec.rendezvous.host = endpoint.host;
  spec.rendezvous.port = endpoint.port.value_or(kDefaultPort);
  spec.rendezvous.role = MUSTER_TRY(role_of(conf));
  if (spec.rendezvous.port == 0 && spec.rendezvous.role != Role::kHost) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--rdzv-endpoint: port 0 can be nobody's goal; got \"{}\"\n  fix: name a "
                      "port, or give is_host=1 in --rdzv-conf to the host and its port to the rest",
                      arguments.value("rdzv-endpoint").value_or(""));
  }
  return {};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<void> take_token(const Environment& environment, JobSpec& spec) {
  std::string& token = spec.rendezvous.token;
  if (const auto found = environment.find("MUSTER_JOB_TOKEN"); found != environment.end()) {
    token = found->second;
  } else if (const auto file = environment.find("MUSTER_JOB_TOKEN_FILE");
             file != environment.end()) {
    token = trim(MUSTER_TRY(read_text(real_file_system(), file->second), "MUSTER_JOB_TOKEN_FILE"));
  } else if (is_loopback(spec.rendezvous.host)) {
    token = MUSTER_TRY(own_job_token(environment));
  } else {
    return make_error(ErrorCode::kInvalidArgument,
                      "rendezvous at {}: several nodes must share a secret; got none\n  fix: set "
                      "MUSTER_JOB_TOKEN or MUSTER_JOB_TOKEN_FILE on all nodes to the same, such as "
                      "the output of: openssl rand -hex 32",
                      spec.rendezvous.host);
  }
  if (token.size() < kLeastTokenNbytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "MUSTER_JOB_TOKEN: must have at least {} characters; got {}",
                      kLeastTokenNbytes, token.size());
  }
  return {};
}

// One node: static takes the store's address from the endpoint.
void take_store_place(const std::string& backend, const Endpoint& endpoint, JobSpec& spec) {
  if (backend != "static" || endpoint.host.empty()) return;
  spec.master_addr = endpoint.host;
  spec.master_port = *endpoint.port;
}
}  // namespace

Result<void> take_nodes(const RunArguments& arguments, const Environment& environment,
                        JobSpec& spec) {
  MUSTER_TRY(take_counts(arguments, spec));
  const NodesPolicy& nodes = spec.policy.nodes;
  const bool is_several = nodes.max_nodes > 1;
  if (const auto text = arguments.value("node-rank")) {
    const int most = nodes.max_nodes - 1;
    spec.rendezvous.node_rank = MUSTER_TRY(parse_int_option(
        "node-rank", *text, 0, most,
        is_several ? fmt::format("a number from 0 to {}", most) : "0 for the only node"));
  }
  const std::string backend = arguments.value("rdzv-backend").value_or("");
  if (backend != "static" && backend != "c10d" && !backend.empty()) {
    return wrong_option("rdzv-backend", "c10d or static", backend);
  }
  if (arguments.flag("standalone")) {
    if (!is_several) return {};
    return make_error(ErrorCode::kInvalidArgument,
                      "--standalone: means one node; got --nnodes {}:{}", nodes.min_nodes,
                      nodes.max_nodes);
  }
  const Conf conf = MUSTER_TRY(parse_conf(arguments));
  const std::string endpoint_text = arguments.value("rdzv-endpoint").value_or("");
  const Endpoint endpoint = MUSTER_TRY(parse_endpoint(endpoint_text));
  if (backend == "static" && !endpoint.host.empty() && !endpoint.port) {
    return wrong_option("rdzv-endpoint", "HOST:PORT for the static backend", endpoint_text);
  }
  // torchrun's "none" is shared by every job that sets no id, so it counts as none.
  const std::string id = arguments.value("rdzv-id").value_or("");
  if (id != "none") spec.rendezvous.id = spec.run_id = id;
  if (!is_several) {
    take_store_place(backend, endpoint, spec);
    return {};
  }
  MUSTER_TRY(take_times(conf, spec.policy.nodes));
  if (backend == "c10d" || (backend.empty() && !endpoint.host.empty())) {
    MUSTER_TRY(take_dynamic(arguments, conf, endpoint, spec));
  } else {
    MUSTER_TRY(take_static(arguments, conf, endpoint, spec));
  }
  spec.rendezvous.local_addr = arguments.value("local-addr").value_or("");
  // A peer's own exit may come over the network a little after those of its victims.
  spec.policy.settle = 200ms;
  return take_token(environment, spec);
}

Result<std::string> own_job_token(const Environment& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  const std::string folder =
      MUSTER_TRY(runtime_folder(runtime == environment.end() ? "" : runtime->second));
  const std::string path = path_join(folder, "token");
  // Written under another name first: whoever finds the file finds all of it.
  const std::string fresh = path + "." + random_hex(4);
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    const std::string token = random_hex(32);
    const bool is_written =
        ::write(fd, token.data(), token.size()) == static_cast<ssize_t>(token.size());
    ::close(fd);
    if (is_written && ::link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST) {
      const int error_number = errno;
      ::unlink(fresh.c_str());
      return make_error(ErrorCode::kIo, "{}: {}", path, errno_text(error_number));
    }
    ::unlink(fresh.c_str());
  }
  return std::string(trim(MUSTER_TRY(read_text(real_file_system(), path))));
}

}  // namespace muster
