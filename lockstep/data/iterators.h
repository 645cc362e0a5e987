#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"

// Building blocks shared by several stages.
namespace lockstep::data {

/// An iterator with one element per input element, so its places and skipping are the input's.
class OneToOneIterator : public ElementIterator {
 public:
  explicit OneToOneIterator(IteratorPtr input) : input_(std::move(input)) {}

  std::int64_t skip(std::int64_t count) override { return input_->skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { input_->locate(consumed, position); }
  void restore(Position& position) override { input_->restore(position); }
  std::string origin(std::int64_t number, std::int64_t row) const override { return input_->origin(number, row); }

 protected:
  IteratorPtr input_;
};

/// An iterator whose next element can be decided now and computed later, by several threads at once.
class DeferredIterator : public ElementIterator {
 public:
  DeferredIterator* deferred() final { return this; }
  /// Writes which rows make up the next element; false at the end.
  virtual bool decide(std::vector<std::int64_t>& rows) = 0;
  /// Computes the element of these rows, in memory of `pool`.
  virtual void compute(const std::vector<std::int64_t>& rows, BufferPool& pool, Element& element) const = 0;
};

/// An iterator that also needs the number of earlier elements; its `next` counts failed ones too.
class CountingIterator : public OneToOneIterator {
 public:
  using OneToOneIterator::OneToOneIterator;

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t skipped = OneToOneIterator::skip(count);
    count_ += skipped;
    return skipped;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    position.push(consumed);
    OneToOneIterator::locate(consumed, position);
  }
  void restore(Position& position) override {
    count_ = position.pop();
    OneToOneIterator::restore(position);
  }

 protected:
  std::int64_t count_ = 0;  // places passed
};

/// An iterator made of a function that writes the next element, and returns false at the end and from then on.
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

/// Copies of elements that are kept in memory.
IteratorPtr iterate_elements(std::shared_ptr<const std::vector<Element>> elements);

/// Reads ahead on a thread, several small elements at a time: handing over costs more than a small element.
IteratorPtr read_ahead_in_chunks(IteratorPtr input);

/// The next `count` numbers of an order, fewer only at its end. The list grows with the numbers read: a batch may be
/// larger than the data.
void read_numbers(IndexIterator& order, std::int64_t count, std::vector<std::int64_t>& numbers);

/// For `iterate`: an iterator of this class over the input's iterator, with these arguments.
template <class Iterator, class... Arguments>
auto over_input(Arguments... arguments) {
  return [=](const Stage& below, const IterationContext& context) {
    return std::make_unique<Iterator>(below.iterate(context), arguments...);
  };
}

/// For `iterate`: `next(elements, element)` reads the input's elements and writes the next one; false at the end.
template <class Next>
auto by_function(Next next) {
  return [next](const Stage& below, const IterationContext& context) {
    return make_function_iterator(
        [elements = below.iterate(context), next](Element& element) mutable { return next(*elements, element); });
  };
}

/// For `cardinality`, if a stage keeps only some of the elements.
inline Cardinality unknown_unless_empty(const Stage& below) {
  return below.cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
}

/// Spec of a stage with several inputs: it covers the elements of all of them. InvalidArgument if they are known not to
/// fit into one dataset; `where` names the stage.
ElementSpec common_spec(const std::vector<StagePtr>& datasets, const std::string& where);

}  // namespace lockstep::data
