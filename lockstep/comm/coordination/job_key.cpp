#include "lockstep/comm/coordination/job_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
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
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  std::string text(256, '\0');
  ssize_t size = -1;
  if (!file || ::fstat(file.get(), &status) != 0 || (size = ::read(file.get(), text.data(), text.size())) < 0) {
    refuse(str("the job key file ", path, " cannot be read"), std::generic_category().message(errno));
  }
  if ((status.st_mode & 077) != 0) {
    refuse(str("the job key file ", path, " must be readable by its owner only (mode 0600)"));
  }
  text.resize(static_cast<std::size_t>(size));
  if (text.size() == kKeyBytes) return text;
  if (const std::string key = from_hex(text); !key.empty()) return key;
  refuse(str("the job key file ", path, " must hold 32 bytes or 64 hexadecimal digits"),
         str("it holds ", size, " bytes"));
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
