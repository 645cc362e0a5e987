#pragma once

#include <string>

namespace lockstep {

/// What a worker needs to speak TLS with the others, as PEM files: all three or none.
struct TlsFiles {
  std::string authority = {};    ///< has signed the certificates of all workers
  std::string certificate = {};  ///< certificate of this worker; names the host of its entry in the cluster
  std::string private_key = {};  ///< key of that certificate, without a password

  /// Whether any of them is set.
  bool any() const { return !authority.empty() || !certificate.empty() || !private_key.empty(); }
};

}  // namespace lockstep
