#pragma once

#include <memory>
#include <span>
#include <type_traits>

#include "lockstep/data/iterators.h"

namespace lockstep::data {

/// Shared by an order of elements and the same order of row numbers, so that each is written once: `Self` has
/// `read(std::span<Item>)`, which writes up to so many items and returns how many, fewer only at the end. Elements are
/// read one at a time; one that fails throws and keeps its place.
template <class Self, class Stream>
class OrderOf;

template <class Self>
class OrderOf<Self, IndexIterator> : public IndexIterator {
 public:
  using Item = std::int64_t;
  std::size_t next(std::span<Item> indices) final { return static_cast<Self*>(this)->read(indices); }

 protected:
  static std::size_t read_from(IndexIterator& input, std::span<Item> items) { return input.next(items); }
};

template <class Self>
class OrderOf<Self, ElementIterator> : public ElementIterator {
 public:
  using Item = Element;
  bool next(Element& element) final { return static_cast<Self*>(this)->read(std::span(&element, 1)) == 1; }

 protected:
  static std::size_t read_from(ElementIterator& input, std::span<Item> items) {
    return !items.empty() && input.next(items.front()) ? 1 : 0;
  }
};

/// Starts the input of such an order.
template <class Stream>
std::unique_ptr<Stream> start_input(const Stage& input, const IterationContext& context) {
  if constexpr (std::is_same_v<Stream, IndexIterator>)
    return input.make_index_iterator(context);
  else
    return input.iterate(context);
}

/// Elements index, index + shards, ...
IteratorPtr take_shard(IteratorPtr elements, std::int64_t shards, std::int64_t index);

/// A stage that only chooses and orders the elements of its input: `make.operator()<Stream>(below, context)` is the
/// order of its elements or row numbers. Over rows of a source it works on plain numbers, so that `from_tensor_slices
/// -> shuffle -> shard -> repeat -> batch` costs one gather per batch.
template <class Make>
StagePtr make_order(StagePtr input, StageDescription description, Make make) {
  description.rows = &Stage::row_source;
  description.order = [make](const Stage& below, const IterationContext& context) -> IndexIteratorPtr {
    return make.template operator()<IndexIterator>(below, context);
  };
  description.iterate = [make](const Stage& below, const IterationContext& context) -> IteratorPtr {
    if (auto rows = below.row_source())
      return make_row_iterator(std::move(rows), make.template operator()<IndexIterator>(below, context));
    return make.template operator()<ElementIterator>(below, context);
  };
  return make_stage({std::move(input)}, std::move(description));
}

/// InvalidArgument unless `count` is a number of elements or passes, or -1: all, or endless. `kind` names the stage.
void check_count(std::string_view kind, std::int64_t count);

}  // namespace lockstep::data
