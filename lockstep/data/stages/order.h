#pragma once

#include <memory>
#include <span>
#include <type_traits>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// What an order of elements and the same order of row numbers share, so that each is written once: `Self` has
/// `read(std::span<Item>)`, which writes up to so many items and says how many, fewer only at the end. Elements are read
/// one at a time; one that fails throws, and has its place.
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

/// A stage that only chooses and orders the elements of its input. Over rows of a source it works on plain numbers, so
/// that `from_tensor_slices -> shuffle -> shard -> repeat -> batch` costs one gather per batch.
class OrderStage : public PassThroughStage {
 public:
  using PassThroughStage::PassThroughStage;
  RowSourcePtr row_source() const final { return input()->row_source(); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const final {
    if (auto rows = row_source()) return make_row_iterator(std::move(rows), make_index_iterator(context));
    return make_element_iterator(context);
  }
  virtual IteratorPtr make_element_iterator(const IterationContext& context) const = 0;
};

/// One whose order is `Self::make_order<Stream>(context)`, of elements or of row numbers.
template <class Self, class Base = OrderStage>
class OrderStageOf : public StageOf<Self, Base> {
 public:
  using StageOf<Self, Base>::StageOf;
  IndexIteratorPtr make_index_iterator(const IterationContext& context) const override {
    return static_cast<const Self&>(*this).template make_order<IndexIterator>(context);
  }

 protected:
  IteratorPtr make_element_iterator(const IterationContext& context) const override {
    return static_cast<const Self&>(*this).template make_order<ElementIterator>(context);
  }
};

/// One with a number of elements or passes; -1 means all, or for ever.
class CountedStage : public OrderStage {
 public:
  CountedStage(StagePtr input, std::string_view kind, std::int64_t count);

  std::string_view kind() const final { return kind_; }
  std::string describe() const override;  ///< "take(5)"

 protected:
  std::int64_t count() const { return count_; }

 private:
  std::string_view kind_;
  std::int64_t count_;
};

}  // namespace lockstep::data
