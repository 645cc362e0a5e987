#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// A position in a pipeline's stream, as a few numbers; never rows.
class LOCKSTEP_EXPORT Position {
 public:
  void push(std::int64_t number) { numbers_.push_back(number); }
  std::int64_t pop();  ///< reads in the order of writing
  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  static Position of(std::vector<std::int64_t> numbers);

 private:
  std::vector<std::int64_t> numbers_;
  std::size_t read_ = 0;
};

}  // namespace lockstep::data
