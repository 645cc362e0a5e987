#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace lockstep::detail {

/// A single number as numpy prints one: "1.0", "1e-05", "3", "True", "nan".
std::string scalar_text(const at::Scalar& element, at::ScalarType dtype);

/// The elements of one array as numpy prints them together: the fewest digits that distinguish each number, one
/// notation for all, padded to equal width.
std::vector<std::string> element_texts(const std::vector<at::Scalar>& elements, at::ScalarType dtype);

}  // namespace lockstep::detail
