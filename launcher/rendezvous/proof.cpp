#include "launcher/rendezvous/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/base/error.h"

namespace muster {
namespace {
constexpr size_t kNbytes = 32;

std::string hmac(std::string_view token, std::string_view label, std::string_view a,
                 std::string_view b) {
  std::string message(label);
  message.append(1, '\0').append(a).append(1, '\0').append(b);
  std::string digest(kNbytes, '\0');
  unsigned int nbytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &nbytes);
  MUSTER_ASSERT(done != nullptr && nbytes == kNbytes, "proof: HMAC must give {} bytes; got {}",
                kNbytes, nbytes);
  return digest;
}
}  // namespace

std::string make_proof_nonce() {
  std::string nonce(kNbytes, '\0');
  const int done = RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), kNbytes);
  MUSTER_ASSERT(done == 1, "proof: the system must give random bytes; RAND_bytes gave {}", done);
  return nonce;
}

std::string node_proof(std::string_view token, std::string_view node_nonce,
                       std::string_view host_nonce) {
  return hmac(token, "muster agent 1, node", node_nonce, host_nonce);
}

std::string host_proof(std::string_view token, std::string_view node_nonce,
                       std::string_view host_nonce) {
  return hmac(token, "muster agent 1, host", node_nonce, host_nonce);
}

bool is_same_proof(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string worker_token(std::string_view token, std::string_view run_id) {
  std::string text;
  for (const char byte : hmac(token, "muster agent 1, workers", run_id, "").substr(0, 16)) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

}  // namespace muster
