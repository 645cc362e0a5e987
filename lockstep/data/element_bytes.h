#pragma once

#include <string>
#include <string_view>

#include "lockstep/data/element.h"

namespace lockstep::data {

/// An element as bytes, equal for equal elements; tensors as their dtype, shape and contents. InvalidArgument for
/// datasets and sparse tensors; `where` names the caller.
std::string to_bytes(const Element& element, const char* where);
/// The element for such bytes; DataLoss if they are malformed. `where` names the file.
Element element_from_bytes(std::string_view bytes, const std::string& where);

}  // namespace lockstep::data
