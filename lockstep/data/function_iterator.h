#pragma once

#include <memory>
#include <utility>

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// An iterator that is no more than a function which writes the next element, and is false at the end and from then on.
template <class Next>
class FunctionIterator final : public ElementIterator {
 public:
  explicit FunctionIterator(Next next) : next_(std::move(next)) {}
  bool next(Element& element) override { return next_(element); }

 private:
  Next next_;
};

template <class Next>
IteratorPtr make_function_iterator(Next next) {
  return std::make_unique<FunctionIterator<Next>>(std::move(next));
}

}  // namespace lockstep::data
