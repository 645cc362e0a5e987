#pragma once

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// A new iterator of `dataset` at the position of `state`.
template <class D>
auto resume(const D& dataset, const IteratorState& state) {
  auto iterator = dataset.iterator();
  iterator.load_state(state);
  return iterator;
}

}  // namespace lockstep::data
