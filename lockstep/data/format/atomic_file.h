#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"

namespace lockstep::data {

/// Replaces a file atomically: bytes go to a new file in the same folder, which is renamed once all of them are on the
/// disk. Whenever the process or the machine stops, the name refers to the old file or the complete new one.
///
///     AtomicFile file(path, bytes.size());
///     file.append(bytes);
///     file.commit();                      // without it the new file is removed and the old one stays
///
/// If processes write to one path at the same time, the last to commit wins. A process that is killed leaves its
/// unfinished `<path>.<process>-<number>.tmp` behind. Nothing is written while `lockstep tune` measures the program.
class LOCKSTEP_EXPORT AtomicFile {
 public:
  /// `size`: how many bytes there will be, for messages. Follows a symbolic link. FailedPrecondition if `path` is not a
  /// regular file.
  AtomicFile(const std::string& path, std::uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view bytes);
  void commit();

 private:
  Descriptor create();
  [[noreturn]] void fail(const char* action, int error_number) const;

  std::string path_;
  std::string folder_;
  std::string temporary_;  ///< empty once it is renamed
  std::uint64_t size_;
  Descriptor file_;
};

}  // namespace lockstep::data
