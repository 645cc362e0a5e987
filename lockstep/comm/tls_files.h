#pragma once

#include <string>

namespace lockstep {

/// A worker's TLS credentials, as PEM files: all three or none.
struct TlsFiles {
  std::string authority = {};    ///< signed the certificates of all workers
  std::string certificate = {};  ///< certificate of this worker; names the host of its entry in the cluster
  std::string private_key = {};  ///< key of that certificate, without a password

  /// Whether any of them is set.
  bool any() const { return !authority.empty() || !certificate.empty() || !private_key.empty(); }
};

}  // namespace lockstep
