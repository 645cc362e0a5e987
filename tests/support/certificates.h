#pragma once

#include <cstdlib>
#include <mutex>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/comm/tls_files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {

/// An authority that signs certificates, made with the commands in docs/multi_worker.md.
class CertificateAuthority {
 public:
  CertificateAuthority() {
    made_ =
        openssl(str("req -x509 ", kNewKey, " -days 30 -subj '/CN=my job' -keyout authority.key -out authority.pem"));
  }

  /// False without the program openssl.
  bool made() const { return made_; }

  /// Any thread may call it.
  TlsFiles sign(const std::string& host, const std::string& name = "IP:127.0.0.1") const {
    static std::mutex mutex;  // the authority's serial number is a file, which openssl does not lock
    const std::lock_guard lock(mutex);
    openssl(str("req -new ", kNewKey, " -subj /CN=", host, " -addext subjectAltName=", name, " -keyout ", host,
                ".key -out ", host, ".csr"));
    openssl(str("x509 -req -in ", host, ".csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 30 ",
                "-copy_extensions copy -out ", host, ".pem"));
    return {folder_ / "authority.pem", folder_ / (host + ".pem"), folder_ / (host + ".key")};
  }

 private:
  static constexpr auto kNewKey = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

  bool openssl(const std::string& arguments) const {
    return std::system(str("cd ", folder_.path().string(), " && openssl ", arguments, " 2>/dev/null").c_str()) == 0;
  }

  const TemporaryFolder folder_;
  bool made_ = false;
};

}  // namespace lockstep
