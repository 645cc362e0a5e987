#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep {

/// Owns a file descriptor (a file, a socket, a pipe) and closes it on destruction.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor taken(std::move(other));
    std::swap(number_, taken.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  /// The system's number for it; -1 if there is none.
  int get() const { return number_; }
  /// Gives up the descriptor without closing it.
  int release() { return std::exchange(number_, -1); }
  /// Returns the system's error number, 0 on success or if it was already closed.
  int close() { return number_ >= 0 && ::close(std::exchange(number_, -1)) != 0 ? errno : 0; }

 private:
  int number_ = -1;
};

}  // namespace lockstep
