#include "lockstep/comm/coordination/job_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <filesystem>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"

namespace lockstep::coordination {
namespace {

constexpr auto kHowToMake =
    "make one with `openssl rand -hex 32 > job.key && chmod 600 job.key`, copy it to every host and "
    "set LOCKSTEP_JOB_KEY_FILE to its path";

[[noreturn]] void refuse(std::string what, std::string seen = {}) {
  throw FailedPrecondition(errors::kJobKey, {.what = std::move(what), .seen = std::move(seen), .help = kHowToMake});
}

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

// Empty if it is not one key in hex.
std::string from_hex(std::string text) {
  text.erase(text.find_last_not_of(" \r\n") + 1);
  const bool is_hex = text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (text.size() != 2 * kKeyBytes || !is_hex) return {};
  std::string key(kKeyBytes, '\0');
  OPENSSL_hexstr2buf_ex(bytes_of(key), key.size(), nullptr, text.c_str(), '\0');
  return key;
}

std::string from_file(const std::string& path) {
  std::error_code error;
  const auto mode = std::filesystem::status(path, error).permissions();
  const std::string text = file_text(path);
  if (text.empty()) {
    refuse(str("the job key file ", path, " cannot be read"),
           error ? error.message() : "no permission, or it is empty");
  }
  if ((mode & ~std::filesystem::perms::owner_all) != std::filesystem::perms::none) {
    refuse(str("the job key file ", path, " must be readable by its owner only (mode 0600)"));
  }
  if (text.size() == kKeyBytes) return text;
  if (const std::string key = from_hex(text); !key.empty()) return key;
  refuse(str("the job key file ", path, " must hold 32 bytes or 64 hexadecimal digits"),
         str("it holds ", text.size(), " bytes"));
}

}  // namespace

std::string find_job_key() {
  if (const std::string path = environment_variable("LOCKSTEP_JOB_KEY_FILE"); !path.empty()) return from_file(path);
  const std::string text = environment_variable("LOCKSTEP_JOB_KEY"), key = from_hex(text);
  if (text.empty() || !key.empty()) return key;
  refuse("LOCKSTEP_JOB_KEY must have 64 hexadecimal digits", str("it has ", text.size(), " characters"));
}

std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += str(part.size(), ':', part);
  // Without a key the mac says nothing, but both sides run the same steps.
  if (key.empty()) key = "no key";
  std::string mac(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(), bytes_of(mac), &size);
  mac.resize(size);
  return mac;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::coordination
