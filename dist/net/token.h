#pragma once
/// Proof of a shared secret by challenge and response: HMAC-SHA256 over both sides' nonces.
///
/// The token never crosses the wire. Each direction has its own label, so that a proof cannot be
/// sent back to who made it. It does not encrypt what follows.

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::net {

inline constexpr size_t kNonceNbytes = 32;
inline constexpr size_t kProofNbytes = 32;

/// Fresh random bytes. @error throws kInternal when the system has no randomness
std::string make_nonce();

/// What a client (or server) that knows `token` answers.
std::string client_proof(std::string_view token, std::string_view client_nonce,
                         std::string_view server_nonce);
std::string server_proof(std::string_view token, std::string_view client_nonce,
                         std::string_view server_nonce);

/// Equality in a time that does not depend on the bytes.
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;

}  // namespace muster::net
