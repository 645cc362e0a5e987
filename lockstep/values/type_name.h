#pragma once

#include <string>
#include <typeinfo>

#include "lockstep/base/export.h"

namespace lockstep {

/// A type's name as people write it: "tensor", "str", "int", "Digits".
LOCKSTEP_EXPORT std::string type_name(const std::type_info& type);

template <class T>
std::string type_name() {
  return type_name(typeid(T));
}

}  // namespace lockstep
