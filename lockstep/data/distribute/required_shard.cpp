#include "lockstep/data/distribute/required_shard.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

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

class RequiredShardStage final : public StageOf<RequiredShardStage, PassThroughStage> {
 public:
  RequiredShardStage(StagePtr input, int shards, int index, TooFew too_few)
      : StageOf(std::move(input)), shards_(shards), index_(index), too_few_(too_few) {}

  std::string_view kind() const override { return "shard"; }
  std::string describe() const override { return str("shard(", shards_, ", ", index_, ", one for each at least)"); }
  StageTraits traits() const override {
    return {.source = StageTraits::Source::Inputs,
            .elements = StageTraits::Elements::Picked,
            .passes_over = true,
            .runs_functions = false};
  }
  Cardinality cardinality() const override { return sharded(input()->cardinality(), shards_, index_); }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<RequiredShardIterator>(input()->iterate(context), shards_, index_, too_few_);
  }

 private:
  int shards_;
  int index_;
  TooFew too_few_;
};

}  // namespace

StagePtr make_required_shard(StagePtr input, int shards, int index, TooFew too_few) {
  return std::make_shared<RequiredShardStage>(std::move(input), shards, index, too_few);
}

}  // namespace lockstep::data
