#pragma once

#include <functional>

#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"
#include "tests/golden_input/cases.h"

// The functions named in the golden data's datasets.
namespace lockstep::golden_input {

struct NamedFunction {
  std::function<void(data::Element&)> apply;
  std::function<data::ElementSpec(const data::ElementSpec&)> spec;
};
NamedFunction map_function(const std::string& name);
NamedFunction add_constant(std::int64_t value);
NamedFunction multiply_by(std::int64_t value);

/// even, odd, all, none, full k, lt k.
std::function<bool(const data::Element&)> predicate(const std::string& name, std::int64_t number);

std::int64_t scalar_of(const data::Element& element);
data::ElementSpec int64_spec(std::vector<std::int64_t> shape);

}  // namespace lockstep::golden_input
