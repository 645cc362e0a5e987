#include "lockstep/comm/coordination/tls.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"

namespace lockstep::coordination {
namespace {

template <auto free>
struct Freed {
  void operator()(auto* one) const { free(one); }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using Check = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;

[[noreturn]] void refuse_tls(std::string what, std::string seen = {}) {
  throw FailedPrecondition(errors::kJobKey, {.what = std::move(what),
                                             .seen = std::move(seen),
                                             .help = "make certificates as docs/multi_worker.md shows under Keys and "
                                                     "TLS, and give the PEM files in MultiWorkerOptions::tls"});
}

Bio bio_of(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// OpenSSL would ask for a password at the terminal.
int no_password(char*, int, int, void*) { return 0; }

Certificate next_certificate(const Bio& text) {
  return Certificate(PEM_read_bio_X509(text.get(), nullptr, no_password, nullptr));
}

void check_together(const TlsFiles& files) {
  const std::string certificate_text = read_pem(files.certificate), key_text = read_pem(files.private_key),
                    authority_text = read_pem(files.authority);
  const Certificate certificate = next_certificate(bio_of(certificate_text));
  if (!certificate) refuse_tls(str("the TLS certificate ", files.certificate, " is no certificate in PEM format"));
  const PrivateKey key(PEM_read_bio_PrivateKey(bio_of(key_text).get(), nullptr, no_password, nullptr));
  if (!key)
    refuse_tls(str("the TLS key ", files.private_key, " must be a private key in PEM format without a password"));
  if (X509_check_private_key(certificate.get(), key.get()) != 1)
    refuse_tls(str("the TLS key ", files.private_key, " does not belong to the certificate ", files.certificate));
  const Store store(X509_STORE_new());
  const Bio authorities = bio_of(authority_text);
  int count = 0;
  while (const Certificate one = next_certificate(authorities)) count += X509_STORE_add_cert(store.get(), one.get());
  if (count == 0) refuse_tls(str("the TLS authority ", files.authority, " holds no certificate in PEM format"));
  const Check check(X509_STORE_CTX_new());
  X509_STORE_CTX_init(check.get(), store.get(), certificate.get(), nullptr);
  if (X509_verify_cert(check.get()) == 1) return;
  refuse_tls(str("the TLS certificate ", files.certificate, " is not valid for the authority ", files.authority),
             X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())));
}

}  // namespace

std::string read_pem(const std::string& path) {
  std::string text = file_text(path);
  if (text.empty()) refuse_tls(str("the TLS file ", path, " cannot be read"));
  return text;
}

TlsFiles find_tls_files(const TlsFiles& given) {
  TlsFiles files = given;
  if (!given.any()) {
    files = {.authority = environment_variable("LOCKSTEP_TLS_AUTHORITY"),
             .certificate = environment_variable("LOCKSTEP_TLS_CERTIFICATE"),
             .private_key = environment_variable("LOCKSTEP_TLS_KEY")};
  }
  if (!files.any()) return files;
  const char* const missing = files.authority.empty()     ? "authority"
                              : files.certificate.empty() ? "certificate"
                              : files.private_key.empty() ? "private key"
                                                          : nullptr;
  if (missing != nullptr) refuse_tls(str("TLS needs three files, but that of the ", missing, " is missing"));
  check_together(files);
  return files;
}

bool is_tls_failure(const std::string& why) {
  return why.find("handshake failed") != why.npos || why.find("not in peer certificate") != why.npos;
}

}  // namespace lockstep::coordination
