#pragma once

#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The files whose names match one of the patterns (`*` any characters but a slash, `?` one, `[ab]` one of several),
/// each once, sorted by the bytes of their names: the same on every machine. Folders are left out. NotFound if a
/// pattern matches nothing.
LOCKSTEP_EXPORT std::vector<std::string> matching_files(const std::vector<std::string>& patterns);

}  // namespace lockstep::data
