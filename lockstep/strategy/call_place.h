#pragma once

#include <source_location>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep::detail {

/// Which call of the program this thread carries out: its place in the source, or the variable it is about. Workers compare
/// it, so that two collectives of one shape in swapped order are noticed. The outermost one counts.
class LOCKSTEP_EXPORT CallPlace {
 public:
  explicit CallPlace(const std::source_location& where);
  explicit CallPlace(const std::string& name);  ///< which must outlive this
  ~CallPlace();
  CallPlace(const CallPlace&) = delete;
  CallPlace& operator=(const CallPlace&) = delete;

  /// "train.cpp:42:9", as compilers write it: two calls may stand on one line. Empty where no call is known.
  static std::string current();

 private:
  void enter();

  const char* file_ = nullptr;
  unsigned line_ = 0;
  unsigned column_ = 0;
  const std::string* name_ = nullptr;
  bool is_outermost_ = false;
};

/// What a call of this thread does, as its arguments say: "axis 1". `CallPlace::current` has it too while this object lives.
class CallDetail {
 public:
  explicit CallDetail(std::string text);
  ~CallDetail();
  CallDetail(const CallDetail&) = delete;
  CallDetail& operator=(const CallDetail&) = delete;

 private:
  std::string text_;
  const std::string* outer_;
};

}  // namespace lockstep::detail
