#include "dist/net/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/base/error.h"

namespace muster::net {
namespace {
std::string prove(std::string_view label, std::string_view token, std::string_view client_nonce,
                  std::string_view server_nonce) {
  const std::string message =
      std::string(label).append(1, '\0').append(client_nonce).append(server_nonce);
  std::string proof(kProofNbytes, '\0');
  unsigned int nbytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &nbytes);
  MUSTER_ASSERT(done != nullptr && nbytes == kProofNbytes,
                "token: HMAC-SHA256 must give {} bytes; got {}", kProofNbytes, nbytes);
  return proof;
}
}  // namespace

std::string make_nonce() {
  std::string nonce(kNonceNbytes, '\0');
  const int done =
      RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(kNonceNbytes));
  MUSTER_ASSERT(done == 1, "token: the system must give random bytes; RAND_bytes gave {}", done);
  return nonce;
}

std::string client_proof(std::string_view token, std::string_view client_nonce,
                         std::string_view server_nonce) {
  return prove("muster store 1, client", token, client_nonce, server_nonce);
}

std::string server_proof(std::string_view token, std::string_view client_nonce,
                         std::string_view server_nonce) {
  return prove("muster store 1, server", token, client_nonce, server_nonce);
}

bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace muster::net
