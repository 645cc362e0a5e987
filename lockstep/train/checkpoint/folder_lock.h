#pragma once

#include <string>

#include "lockstep/base/descriptor.h"

namespace lockstep::train::detail {

/// Holds a folder for one manager. The system lets go of it when the process ends, however it does.
class FolderLock {
 public:
  /// Makes the folder. FailedPrecondition, with the process and host that has it, if another one holds it.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

}  // namespace lockstep::train::detail
