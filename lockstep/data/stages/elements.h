#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Copies of elements that are kept in memory.
IteratorPtr iterate_elements(std::shared_ptr<const std::vector<Element>> elements);

/// The same as a source: the one element of `from_tensors`, those of a window.
StagePtr make_elements(std::string kind, std::vector<Element> elements, ElementSpec spec);

}  // namespace lockstep::data
