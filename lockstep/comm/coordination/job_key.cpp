#include "lockstep/comm/coordination/job_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

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

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> from_hex(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  if (text.size() != 2 * kKeyBytes) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit_of(text[i]);
    const int low = digit_of(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

std::string from_file(const char* path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse(str("the job key file ", path, " cannot be opened"), std::generic_category().message(errno));
  struct stat status {};
  std::array<char, 256> buffer{};
  const bool known = ::fstat(file, &status) == 0;
  const ssize_t size = ::read(file, buffer.data(), buffer.size());
  ::close(file);
  if (!known || size < 0)
    refuse(str("the job key file ", path, " cannot be read"), std::generic_category().message(errno));
  if ((status.st_mode & 077) != 0) {
    refuse(str("the job key file ", path, " must be readable by its owner only (mode 0600)"));
  }
  const std::string_view text(buffer.data(), static_cast<std::size_t>(size));
  if (text.size() == kKeyBytes) return std::string(text);
  if (auto bytes = from_hex(text)) return *bytes;
  refuse(str("the job key file ", path, " must hold 32 bytes or 64 hexadecimal digits"),
         str("it holds ", size, " bytes"));
}

}  // namespace

std::string find_job_key(const std::string& given) {
  if (!given.empty()) {
    if (given.size() != kKeyBytes) refuse("job_key must have 32 bytes", str("it has ", given.size()));
    return given;
  }
  if (const char* path = std::getenv("LOCKSTEP_JOB_KEY_FILE"); path != nullptr && *path != 0) return from_file(path);
  if (const char* text = std::getenv("LOCKSTEP_JOB_KEY"); text != nullptr && *text != 0) {
    if (auto bytes = from_hex(text)) return *bytes;
    refuse("LOCKSTEP_JOB_KEY must have 64 hexadecimal digits", str("it has ", std::strlen(text), " characters"));
  }
  return {};
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1) {
    throw Internal(errors::kInternal,
                   {.what = "OpenSSL has no random numbers", .help = "report this with your system's name"});
  }
  return bytes;
}

std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    for (int shift = 0; shift < 64; shift += 8) {
      text += static_cast<char>((static_cast<std::uint64_t>(part.size()) >> shift) & 0xff);
    }
    text += part;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned size = 0;
  // Without a key the mac says nothing, but both sides run the same steps.
  static constexpr std::string_view kNoKey = "no key";
  const std::string_view used = key.empty() ? kNoKey : key;
  HMAC(EVP_sha256(), used.data(), static_cast<int>(used.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), mac.data(), &size);
  return {reinterpret_cast<const char*>(mac.data()), size};
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::coordination
