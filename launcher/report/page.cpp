#include "launcher/report/page.h"

#include <openssl/evp.h>

#include <array>

#include "launcher/report/page_assets.h"

namespace muster {
namespace {
// The name by which a content security policy knows an inline script: its SHA-256 in base64.
std::string script_hash(std::string_view script) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  const int done = EVP_Digest(script.data(), script.size(), digest.data(), &length, EVP_sha256(),
                              /*impl=*/nullptr);
  MUSTER_ASSERT(done == 1, "report: SHA-256 must be available");
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> text;
  const int size = EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(length));
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(size)};
}

void replace_once(std::string& text, std::string_view mark, std::string_view with) {
  const size_t at = text.find(mark);
  MUSTER_ASSERT(at != std::string::npos, "report: the page must have a place {}", mark);
  text.replace(at, mark.size(), with);
}
}  // namespace

std::string report_page(const RunFolder& run) {
  std::string page(kPageHtml);
  const std::string script = "\n" + std::string(kPageScript);
  // The data goes in last, so that nothing in it is taken for a mark.
  replace_once(page, "{{script_hash}}", script_hash(script));
  replace_once(page, "{{style}}", kPageStyle);
  replace_once(page, "{{script}}", script);
  replace_once(page, "{{data}}", report_data(run));
  return page;
}
}  // namespace muster
