#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep::data {

/// An open file of the system, closed when it goes.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() { close(); }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  /// The error number of the system, 0 if all went well or the file was closed before.
  int close() { return is_open() && ::close(std::exchange(number_, -1)) != 0 ? errno : 0; }

 private:
  int number_ = -1;
};

}  // namespace lockstep::data
