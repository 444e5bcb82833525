#pragma once
/// Proof that both sides of a connection between agents know the job token, without sending it.
///
/// HMAC-SHA256 over both sides' fresh nonces, one label for each direction. What follows on the
/// connection is authenticated by it only as far as the network path can be trusted: nothing is
/// encrypted.

#include <string>
#include <string_view>

namespace muster {

/// 32 random bytes. @error throws kInternal when the system has no randomness
std::string make_proof_nonce();

/// What the joining node answers to the host's challenge.
std::string node_proof(std::string_view token, std::string_view node_nonce,
                       std::string_view host_nonce);
/// What the host answers in return.
std::string host_proof(std::string_view token, std::string_view node_nonce,
                       std::string_view host_nonce);

/// Equality in a time that does not depend on where the bytes differ.
bool is_same_proof(std::string_view a, std::string_view b) noexcept;

/// The token that workers of this job get: follows from the job token and the run id, but does not
/// give the job token away.
std::string worker_token(std::string_view token, std::string_view run_id);

}  // namespace muster
