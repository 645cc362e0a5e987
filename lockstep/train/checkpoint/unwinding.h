#pragma once

#include <exception>

namespace lockstep::train::detail {

/// A member of an object whose destructor behaves differently if an exception destroys it.
class Unwinding {
 public:
  /// Whether an exception is on its way that was thrown after this was made.
  bool is_on_its_way() const { return std::uncaught_exceptions() > exceptions_; }

 private:
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace lockstep::train::detail
