#pragma once
/// The client of a store that another process serves over TCP: ours (tcp_store_server.h), or
/// PyTorch's TCPStore.
///
/// Threads do not wait for each other: each call in flight has a connection of its own, kept for
/// the next call. A write is confirmed by the server before the call returns.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "dist/store/store.h"

namespace muster {
namespace internal {
class ConnectionPool;
}

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string token = {};  ///< the server's required_token; empty for PyTorch's server
  /// Puts "/" before every key, as PyTorch's clients do, to share keys with them.
  bool c10d_key_prefix = false;
  /// Counts itself in the key "init/", on which PyTorch's hosting rank waits for all ranks.
  bool c10d_join = false;
  /// Every exchange that does not wait for a key must be answered within it.
  Duration request_limit = 30s;
};

class TcpStore final : public Store {
 public:
  /// Connects, trying again with growing pauses until `deadline`.
  /// @error kTimeout             says what failed last: refused, timed out, unknown host
  /// @error kFailedPrecondition  at once: wrong token, or no TCPStore behind the port
  static Result<std::unique_ptr<TcpStore>> open(TcpStoreOptions options, Deadline deadline);

  ~TcpStore() override;
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::optional<std::string>> try_get(std::string_view key) override;
  Result<std::vector<std::string>> get_many(const std::vector<std::string>& keys,
                                            Deadline deadline) override;
  Result<int64_t> add(std::string_view key, int64_t delta) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<void> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<bool> remove(std::string_view key) override;
  Result<void> append(std::string_view key, std::string_view value) override;
  /// With c10d_key_prefix: all keys of the server, also "init/" and those of others.
  Result<int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  void cancel() override;
  [[nodiscard]] std::string describe() const override;

 private:
  TcpStore(TcpStoreOptions options, std::unique_ptr<internal::ConnectionPool> connections);

  Result<void> join();
  [[nodiscard]] std::string full(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> full(const std::vector<std::string>& keys) const;
  [[nodiscard]] Deadline request_deadline() const;
  [[nodiscard]] Deadline request_deadline(Deadline wait_deadline) const;

  template <typename Read>
  auto ask(std::string_view operation, Deadline deadline, std::string_view request,
           const Read& read);
  Result<int64_t> ask_i64(std::string_view operation, const std::string& request);

  // These take keys as they are on the wire.
  Result<std::optional<std::string>> try_get_raw(std::string_view operation, const std::string& key,
                                                 Deadline deadline);
  Result<bool> wait_raw(std::string_view operation, const std::vector<std::string>& keys,
                        Deadline deadline);
  Result<std::vector<std::string>> missing_raw(std::string_view operation,
                                               const std::vector<std::string>& keys,
                                               Deadline deadline);
  Result<void> wait_for_all(std::string_view operation, const std::vector<std::string>& keys,
                            Deadline deadline);
  Result<void> write_and_confirm(std::string_view operation, std::string request);

  const TcpStoreOptions options_;
  const std::unique_ptr<internal::ConnectionPool> connections_;
  std::atomic<uint32_t> next_nonce_{1};
};

}  // namespace muster
