#include "lockstep/comm/coordination/credentials.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"

namespace lockstep::coordination {
namespace {

constexpr auto kMakeKey =
    "make one with `openssl rand -hex 32 > job.key && chmod 600 job.key`, copy it to every host and "
    "set LOCKSTEP_JOB_KEY_FILE to its path";
constexpr auto kMakeCertificates =
    "make certificates as docs/multi_worker.md shows under Keys and TLS, and give the PEM files in "
    "MultiWorkerOptions::tls";

[[noreturn]] void refuse(const char* help, std::string what, std::string seen = {}) {
  throw FailedPrecondition(errors::kJobKey, {.what = std::move(what), .seen = std::move(seen), .help = help});
}

std::string read_file(const std::string& what, const std::string& path, const char* help) {
  errno = 0;
  std::string text = file_text(path);
  if (text.empty()) refuse(help, what + " cannot be read", errno == 0 ? "it is empty" : system_text(errno));
  return text;
}

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }

// Empty if it is not one hexadecimal key.
std::string from_hex(std::string text) {
  text.erase(text.find_last_not_of(" \r\n") + 1);
  std::string key(kKeyBytes, '\0');
  std::size_t size = 0;  // stops at a zero byte
  const bool is_hex = OPENSSL_hexstr2buf_ex(bytes_of(key), key.size(), &size, text.c_str(), '\0') == 1;
  return is_hex && size == kKeyBytes && text.size() == 2 * kKeyBytes ? key : "";
}

std::string from_file(const std::string& path) {
  const std::string text = read_file(str("the job key file ", path), path, kMakeKey);
  const auto mode = std::filesystem::status(path).permissions();
  if ((mode & ~std::filesystem::perms::owner_all) != std::filesystem::perms::none) {
    refuse(kMakeKey, str("the job key file ", path, " must be readable by its owner only (mode 0600)"));
  }
  if (text.size() == kKeyBytes) return text;
  if (const std::string key = from_hex(text); !key.empty()) return key;
  refuse(kMakeKey, str("the job key file ", path, " must hold 32 bytes or 64 hexadecimal digits"),
         str("it holds ", text.size(), " bytes"));
}

// OpenSSL would ask for a password on the terminal.
int no_password(char*, int, int, void*) { return 0; }

void check_together(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> owner(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  SSL_CTX* const context = owner.get();
  SSL_CTX_set_default_passwd_cb(context, no_password);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    refuse(kMakeCertificates, str("the TLS certificate ", files.certificate, " is not a certificate in PEM format"));
  if (SSL_CTX_use_PrivateKey_file(context, files.private_key.c_str(), SSL_FILETYPE_PEM) != 1 &&
      ERR_GET_REASON(ERR_peek_last_error()) != X509_R_KEY_VALUES_MISMATCH)
    refuse(kMakeCertificates,
           str("the TLS key ", files.private_key, " must be a private key in PEM format without a password"));
  if (SSL_CTX_check_private_key(context) != 1)
    refuse(kMakeCertificates,
           str("the TLS key ", files.private_key, " does not belong to the certificate ", files.certificate));
  if (SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1)
    refuse(kMakeCertificates, str("the TLS authority ", files.authority, " holds no certificate in PEM format"));
  if (SSL_CTX_build_cert_chain(context, SSL_BUILD_CHAIN_FLAG_UNTRUSTED) == 1) return;
  const char* reason = "";
  ERR_peek_last_error_data(&reason, nullptr);
  refuse(kMakeCertificates,
         str("the TLS certificate ", files.certificate, " is not valid for the authority ", files.authority), reason);
}

}  // namespace

std::string find_job_key() {
  if (const std::string path = environment_variable("LOCKSTEP_JOB_KEY_FILE"); !path.empty()) return from_file(path);
  const std::string text = environment_variable("LOCKSTEP_JOB_KEY"), key = from_hex(text);
  if (text.empty() || !key.empty()) return key;
  refuse(kMakeKey, "LOCKSTEP_JOB_KEY must have 64 hexadecimal digits", str("it has ", text.size(), " characters"));
}

std::string mac_of(std::string_view key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += str(part.size(), ':', part);
  // Without a key the mac proves nothing, but both sides run the same steps.
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

std::string read_pem(const std::string& path) { return read_file(str("the TLS file ", path), path, kMakeCertificates); }

TlsFiles find_tls_files(const TlsFiles& given) {
  const TlsFiles files = given.any() ? given
                                     : TlsFiles{.authority = environment_variable("LOCKSTEP_TLS_AUTHORITY"),
                                                .certificate = environment_variable("LOCKSTEP_TLS_CERTIFICATE"),
                                                .private_key = environment_variable("LOCKSTEP_TLS_KEY")};
  if (!files.any()) return files;
  for (const auto& [what, path] : {std::pair{"authority", files.authority},
                                   {"certificate", files.certificate},
                                   {"private key", files.private_key}}) {
    if (path.empty())
      refuse(kMakeCertificates, str("TLS needs three files, but the file of the ", what, " is missing"));
    read_pem(path);
  }
  check_together(files);
  return files;
}

bool speaks_tls(const std::string& address, std::chrono::milliseconds wait) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(context.get()), SSL_free);
  SSL_set_bio(session.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_connect(session.get());  // only writes its first message, to which the service answers with its own record
  char *greeting = nullptr, kind = 0;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(SSL_get_wbio(session.get()), &greeting));
  const Deadline deadline = Deadline::after(wait);
  const Descriptor socket = connect_to(parse_address(address), deadline);
  return socket && write_all(socket.get(), greeting, size, deadline) && read_all(socket.get(), &kind, 1, deadline) &&
         (kind == SSL3_RT_ALERT || kind == SSL3_RT_HANDSHAKE);
}

bool is_tls_failure(const std::string& why) {
  return why.find("handshake failed") != why.npos || why.find("not in peer certificate") != why.npos;
}

}  // namespace lockstep::coordination
