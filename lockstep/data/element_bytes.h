#pragma once

#include <string>
#include <string_view>

#include "lockstep/data/element.h"

namespace lockstep::data {

/// An element as bytes, for files; tensors as their dtype, shape and contents. Datasets cannot be written.
std::string to_bytes(const Element& element);
/// The element again; DataLoss if the bytes are not one. `where` names the file.
Element element_from_bytes(std::string_view bytes, const std::string& where);

}  // namespace lockstep::data
