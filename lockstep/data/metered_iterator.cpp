#include "lockstep/data/metered_iterator.h"

#include "lockstep/data/stage.h"

namespace lockstep::data {
namespace {

using Clock = std::chrono::steady_clock;

/// Rows of an element: the first dimension of a batch, 1 for an element that has none.
std::int64_t rows_in(const Element& element, bool batches) {
  if (!batches || element.components.empty()) return 1;
  const Component& first = element.components.front();
  if (const auto* tensor = std::get_if<at::Tensor>(&first)) return tensor->dim() > 0 ? tensor->size(0) : 1;
  if (const auto* strings = std::get_if<Strings>(&first)) return strings->size();
  return 1;
}

bool gives_batches(const Stage& stage) {
  const StageTraits::Rows rows = stage.traits().rows;
  if (rows != StageTraits::Rows::AsInput || stage.inputs().size() != 1) return rows == StageTraits::Rows::Many;
  return gives_batches(*stage.input());
}

std::int64_t nanoseconds_of(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

class MeteredIterator final : public ElementIterator {
 public:
  MeteredIterator(IteratorPtr measured, std::shared_ptr<StageCounters> counters, bool batches)
      : measured_(std::move(measured)), counters_(std::move(counters)), batches_(batches) {}

  bool next(Element& element) override {
    const auto start = Clock::now();
    if (counters_->first_asked_ns.load(std::memory_order_relaxed) == 0) {
      std::int64_t not_yet = 0;
      counters_->first_asked_ns.compare_exchange_strong(not_yet, nanoseconds_of(start));
    }
    const bool more = measured_->next(element);
    counters_->asked_ns.fetch_add(std::chrono::nanoseconds(Clock::now() - start).count(), std::memory_order_relaxed);
    if (more) {
      counters_->elements.fetch_add(1, std::memory_order_relaxed);
      counters_->rows.fetch_add(rows_in(element, batches_), std::memory_order_relaxed);
    }
    return more;
  }
  std::int64_t skip(std::int64_t count) override { return measured_->skip(count); }
  void locate(std::int64_t consumed, Position& position) const override { measured_->locate(consumed, position); }
  void restore(Position& position) override { measured_->restore(position); }
  std::string origin(std::int64_t number, std::int64_t row) const override { return measured_->origin(number, row); }

 private:
  IteratorPtr measured_;
  std::shared_ptr<StageCounters> counters_;
  bool batches_;
};

}  // namespace

IteratorPtr make_metered_iterator(IteratorPtr measured, const Stage& stage, std::shared_ptr<StageCounters> counters) {
  return std::make_unique<MeteredIterator>(std::move(measured), std::move(counters), gives_batches(stage));
}

}  // namespace lockstep::data
