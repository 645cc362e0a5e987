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

  /// "train.cpp:42"; empty where no call is known.
  static std::string current();

 private:
  void enter();

  const char* file_ = nullptr;
  unsigned line_ = 0;
  const std::string* name_ = nullptr;
  bool is_outermost_ = false;
};

}  // namespace lockstep::detail
