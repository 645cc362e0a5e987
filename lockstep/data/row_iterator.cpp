#include <array>

#include "lockstep/data/stage.h"

namespace lockstep::data {
namespace {

/// Elements one by one from rows and an order.
class RowIterator final : public ElementIterator {
 public:
  RowIterator(RowSourcePtr rows, std::unique_ptr<IndexIterator> indices)
      : rows_(std::move(rows)), indices_(std::move(indices)) {}

  bool next(Element& element) override {
    if (at_ == filled_) {
      filled_ = indices_->next(ahead_);
      at_ = 0;
      if (filled_ == 0) return false;
    }
    element = rows_->row(ahead_[at_++]);
    return true;
  }

  std::int64_t skip(std::int64_t count) override {
    const auto from_ahead = std::min<std::int64_t>(count, static_cast<std::int64_t>(filled_ - at_));
    at_ += static_cast<std::size_t>(from_ahead);
    return from_ahead + (from_ahead < count ? indices_->skip(count - from_ahead) : 0);
  }

  void locate(std::int64_t consumed, Position& position) const override { indices_->locate(consumed, position); }
  void restore(Position& position) override { indices_->restore(position); }

 private:
  RowSourcePtr rows_;
  std::unique_ptr<IndexIterator> indices_;
  std::array<std::int64_t, 64> ahead_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
};

}  // namespace

IteratorPtr make_row_iterator(RowSourcePtr rows, std::unique_ptr<IndexIterator> indices) {
  return std::make_unique<RowIterator>(std::move(rows), std::move(indices));
}

}  // namespace lockstep::data
