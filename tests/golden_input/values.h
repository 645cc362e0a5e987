#pragma once

#include "lockstep/data/cardinality.h"
#include "lockstep/data/element.h"
#include "lockstep/data/element_spec.h"
#include "tests/golden_input/cases.h"

// Elements, specs and errors in the form of the golden data, and back.
namespace lockstep::golden_input {

/// Nested arrays; {"shape": [...]} for a tensor without elements whose rank is not 1; {"tuple": [...]} of components.
json write(const data::Element& element);
json write(const data::PartialShape& shape);  ///< null if unknown
json write_shapes(const data::ElementSpec& spec);
json write_components(const data::ElementSpec& spec);  ///< [{shape, dtype}, ...]
json write(data::Cardinality cardinality);             ///< a number, "infinite" or "unknown"

/// Nested arrays of integers (or floats, depending on `dtype`) as a tensor.
at::Tensor read_tensor(const json& value, const std::string& dtype = "");
/// {"tuple"}, {"dict"} or one tensor, as components.
data::Element read_element(const json& value, const std::string& dtype = "");

/// The current exception as {"error": "INVALID_ARGUMENT", "text": ...}; rethrows UnknownForm, and throws it for a case
/// with missing JSON fields.
json current_error();
template <class F>
json outcome_of(F&& call) {
  try {
    return call();
  } catch (...) {
    return current_error();
  }
}

}  // namespace lockstep::golden_input
