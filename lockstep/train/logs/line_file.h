#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"

namespace lockstep::train::detail {

/// A text file that grows by whole lines, each of which is with the operating system when `append` returns. While `lockstep tune`
/// measures the program there is no file, and it stays empty.
class LineFile {
 public:
  /// Opens a file, or makes one. The lines up to the first for which `keeps(line, number)` is false stay; those after it, and a
  /// last one that a killed process has not finished, are cut off.
  LineFile(std::string path, const std::function<bool(std::string_view line, std::int64_t number)>& keeps);

  /// Adds a line end. If that fails, nothing of the line stays.
  void append(std::string_view line);
  /// Replaces the whole file, at once.
  void replace(const std::string& content);

  std::string content() const;
  bool empty() const { return size_ == 0; }
  const std::string& path() const { return path_; }

 private:
  void open();
  void cut(std::int64_t size);

  std::string path_;
  Descriptor file_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep::train::detail
