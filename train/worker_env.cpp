#include "train/worker_env.h"

#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "dist/store/hash_store.h"
#include "dist/store/prefix_store.h"
#include "dist/store/tcp_store.h"
#include "dist/store/tcp_store_server.h"

namespace muster {
namespace {
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<int> number(const char* name, int fallback) {
  const std::string text = variable(name);
  if (text.empty()) return fallback;
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "environment: {} must be a number >= 0; got \"{}\"", name, text);
  }
  return static_cast<int>(value);
}

// Outside an agent, rank 0 serves the store itself; the server lives as long as the store does.
struct HostedStore {
  std::unique_ptr<TcpStoreServer> server;
  std::shared_ptr<Store> client;
};
}  // namespace

Result<WorkerEnv> WorkerEnv::read() {
  WorkerEnv env;
  std::vector<std::string> missing;
  bool any = false;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (variable(name).empty()) {
      missing.emplace_back(name);
    } else {
      any = true;
    }
  }
  if (any && !missing.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT belong together; missing {}\n"
        "  fix: start with muster run, or set all four",
        join(missing));
  }
  env.error_file = variable("TORCHELASTIC_ERROR_FILE");
  if (!any) return env;
  env.global_rank = MUSTER_TRY(number("RANK", 0));
  env.world_size = MUSTER_TRY(number("WORLD_SIZE", 1));
  env.local_rank = MUSTER_TRY(number("LOCAL_RANK", env.global_rank));
  env.local_world_size = MUSTER_TRY(number("LOCAL_WORLD_SIZE", env.world_size));
  env.master_addr = variable("MASTER_ADDR");
  env.master_port = MUSTER_TRY(number("MASTER_PORT", 0));
  env.agent_hosts_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.job_token = variable("MUSTER_JOB_TOKEN");
  const int restarts = MUSTER_TRY(number("TORCHELASTIC_RESTART_COUNT", 0));
  env.attempt = MUSTER_TRY(number("MUSTER_ATTEMPT", restarts));
  env.generation = MUSTER_TRY(number("MUSTER_GENERATION", env.attempt + 1));
  if (env.global_rank >= env.world_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "environment: RANK must be below WORLD_SIZE; got {} of {}", env.global_rank,
                      env.world_size);
  }
  return env;
}

Result<std::shared_ptr<Store>> open_job_store(const WorkerEnv& env, Deadline deadline) {
  if (env.world_size == 1 && env.master_addr.empty())
    return std::shared_ptr<Store>(std::make_shared<HashStore>());
  std::unique_ptr<TcpStoreServer> server;
  TcpStoreOptions options{.host = env.master_addr, .port = env.master_port, .token = env.job_token};
  if (!env.agent_hosts_store && env.global_rank == 0) {
    server = MUSTER_TRY(TcpStoreServer::open({.host = env.master_addr, .port = env.master_port}),
                        "while serving the store as rank 0");
  }
  std::shared_ptr<Store> client =
      MUSTER_TRY(TcpStore::open(options, deadline), "while joining the job's store");
  if (server) {
    const auto hosted =
        std::make_shared<HostedStore>(HostedStore{std::move(server), std::move(client)});
    client = std::shared_ptr<Store>(hosted, hosted->client.get());
  }
  return std::shared_ptr<Store>(std::make_shared<PrefixStore>(
      std::move(client), fmt::format("muster/gen{}", env.generation)));
}

namespace {
Result<void> write_file(const std::string& path, std::string_view text) {
  FileSystem& fs = real_file_system();
  const std::unique_ptr<WritableFile> file = MUSTER_TRY(fs.create(path + ".tmp"));
  MUSTER_TRY(file->append(std::as_bytes(std::span(text.data(), text.size()))));
  MUSTER_TRY(file->close());
  return fs.rename(path + ".tmp", path);
}
}  // namespace

void write_error_file(const WorkerEnv& env, const Error& error) {
  if (env.error_file.empty()) return;
  const nlohmann::json record = {
      {"message",
       {{"message", fmt::format("{}: {}", to_string(error.code()), error.message())},
        {"extraInfo",
         {{"py_callstack", error.what()}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  // Whole or not at all, but not to disk: it is read at once, and the launcher may not wait long.
  static_cast<void>(
      write_file(env.error_file,
                 record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}
}  // namespace muster
