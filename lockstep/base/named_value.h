#pragma once

namespace lockstep {

/// A value of one of Lockstep's enums, for classes that rename its values. Converts both ways.
template <class Enum>
class NamedValue {
 public:
  constexpr NamedValue(Enum value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr operator Enum() const { return value_; }   // NOLINT(google-explicit-constructor)

 private:
  Enum value_;
};

}  // namespace lockstep
