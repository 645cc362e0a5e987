#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/element_spec.h"

namespace lockstep::data {

/// What rows must have in common to become one batch: structure, types, shapes, and where their tensors lie.
class RowForm {
 public:
  /// An error if such rows cannot be batched at all.
  RowForm(const Element& row, const std::string& where);

  bool fits(const Element& row) const;
  bool operator==(const RowForm&) const = default;

  /// What to throw when row `number` of a batch has the form `other`, and its first row this one.
  InvalidArgument misfit(const RowForm& other, std::int64_t number, const std::string& where) const;

 private:
  struct Memory {
    at::Device device = at::kCPU;
    at::Layout layout = at::kStrided;
    bool operator==(const Memory&) const = default;
  };
  std::string describe() const;

  ElementSpec spec_;
  std::vector<Memory> memory_;  // one for each component
};

}  // namespace lockstep::data
