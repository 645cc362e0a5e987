#include "lockstep/data/metered_iterator.h"

#include "lockstep/data/one_to_one.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stage_counters.h"

namespace lockstep::data {
namespace {

using Clock = std::chrono::steady_clock;

bool gives_batches(const Stage& stage) {
  const StageTraits::Rows rows = stage.traits().rows;
  if (rows != StageTraits::Rows::AsInput || stage.inputs().size() != 1) return rows == StageTraits::Rows::Many;
  return gives_batches(*stage.input());
}

std::int64_t nanoseconds_of(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

class MeteredIterator final : public OneToOneIterator {
 public:
  MeteredIterator(IteratorPtr measured, std::shared_ptr<StageCounters> counters, bool batches)
      : OneToOneIterator(std::move(measured)), counters_(std::move(counters)), batches_(batches) {}

  bool next(Element& element) override {
    const auto start = Clock::now();
    if (counters_->first_asked_ns.load(std::memory_order_relaxed) == 0) {
      std::int64_t not_yet = 0;
      counters_->first_asked_ns.compare_exchange_strong(not_yet, nanoseconds_of(start));
    }
    const bool more = input_->next(element);
    counters_->asked_ns.fetch_add(std::chrono::nanoseconds(Clock::now() - start).count(), std::memory_order_relaxed);
    if (more) {
      counters_->elements.fetch_add(1, std::memory_order_relaxed);
      counters_->rows.fetch_add(batches_ ? rows_for_reports(element) : 1, std::memory_order_relaxed);
    }
    return more;
  }

 private:
  std::shared_ptr<StageCounters> counters_;
  bool batches_;
};

}  // namespace

IteratorPtr make_metered_iterator(IteratorPtr measured, const Stage& stage, std::shared_ptr<StageCounters> counters) {
  return std::make_unique<MeteredIterator>(std::move(measured), std::move(counters), gives_batches(stage));
}

}  // namespace lockstep::data
