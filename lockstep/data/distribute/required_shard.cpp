#include "lockstep/data/distribute/required_shard.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/described_stage.h"

namespace lockstep::data {
namespace {

class RequiredShardIterator final : public ElementIterator {
 public:
  RequiredShardIterator(IteratorPtr input, int shards, int index, TooFew too_few)
      : input_(std::move(input)), shards_(shards), index_(index), too_few_(too_few) {}

  bool next(Element& element) override {
    if (!pass_others()) return false;
    try {
      if (!input_->next(element)) return end();
    } catch (...) {
      count_own();  // it keeps its place
      throw;
    }
    count_own();
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    for (; skipped < count && pass_others() && (input_->skip(1) == 1 || end()); ++skipped) count_own();
    return skipped;
  }

 private:
  /// Leaves out what lies between the last own element and the next; false at the end.
  bool pass_others() {
    const std::int64_t others = first_ ? index_ : shards_ - 1 - ahead_;
    ahead_ = 0;
    const std::int64_t passed = input_->skip(others);
    if (first_) before_ = passed;
    return passed == others || end();
  }

  /// There is no own element any more; false. Where there was none at all, there are none for anybody, or too few.
  bool end() {
    const bool too_few = first_ && before_ > 0 && too_few_ == TooFew::FailsOnEveryWorker;
    first_ = false;
    if (too_few) fail(before_);
    return false;
  }

  /// Behind the first own element, looks whether there is one for each of the others, too.
  void count_own() {
    if (!first_) return;
    first_ = false;
    ahead_ = input_->skip(shards_ - 1 - index_);
    if (ahead_ < shards_ - 1 - index_) fail(index_ + 1 + ahead_);
  }

  [[noreturn]] void fail(std::int64_t elements) const {
    throw InvalidArgument(
        errors::kTooFewElements,
        {.what = str("there are not enough files or elements for ", counted(shards_, "worker")),
         .where = str("shard ", index_, " of ", shards_),
         .seen = str(counted(elements, "element"), " to share out"),
         .help = "switch sharding off with AutoShardPolicy::Off, or share out rows with AutoShardPolicy::Data"});
  }

  IteratorPtr input_;
  std::int64_t shards_;
  std::int64_t index_;
  TooFew too_few_;
  std::int64_t before_ = 0;  ///< elements before the first own one
  std::int64_t ahead_ = 0;   ///< elements of others that were passed already
  bool first_ = true;        ///< no own element was reached yet
};

}  // namespace

StagePtr make_required_shard(StagePtr input, int shards, int index, TooFew too_few) {
  return make_stage({std::move(input)},
                    {.kind = "shard",
                     .text = str("shard(", shards, ", ", index, ", one for each at least)"),
                     .traits = StageTraits::passing_over(StageTraits::Elements::Picked),
                     .cardinality = [=](const Stage& below) { return sharded(below.cardinality(), shards, index); },
                     .iterate = over_input<RequiredShardIterator>(shards, index, too_few)});
}

}  // namespace lockstep::data
