#include "lockstep/data/distribute/required_shard.h"

#include "lockstep/data/stages/look_ahead.h"
#include "lockstep/data/stages/order.h"

namespace lockstep::data {
namespace {

/// What is shared out. Before the first element it looks whether there is one for each worker.
class EnoughForAll final : public LookAhead {
 public:
  EnoughForAll(IteratorPtr input, int shards, int index, TooFew too_few)
      : LookAhead(std::move(input)), shards_(shards), index_(index), too_few_(too_few) {}

  bool next(Element& element) override {
    check();
    return LookAhead::next(element);
  }
  std::int64_t skip(std::int64_t count) override {
    check();
    return LookAhead::skip(count);
  }

 private:
  void check() {
    if (std::exchange(checked_, true)) return;
    const std::int64_t elements = look(shards_, index_, index_ + 1);
    const bool is_seen = elements > index_ || too_few_ == TooFew::FailsOnEveryWorker;
    if (elements == 0 || elements == shards_ || !is_seen) return;
    throw InvalidArgument(
        errors::kTooFewElements,
        {.what = str("there are not enough files or elements for ", counted(shards_, "worker")),
         .where = str("shard ", index_, " of ", shards_),
         .seen = str(counted(elements, "element"), " to share out"),
         .help = "switch sharding off with AutoShardPolicy::Off, or share out rows with AutoShardPolicy::Data"});
  }

  std::int64_t shards_;
  std::int64_t index_;
  TooFew too_few_;
  bool checked_ = false;
};

}  // namespace

StagePtr make_required_shard(StagePtr input, int shards, int index, TooFew too_few) {
  return make_stage({std::move(input)},
                    {.kind = "shard",
                     .text = str("shard(", shards, ", ", index, ", one for each at least)"),
                     .traits = StageTraits::passing_over(StageTraits::Elements::Picked),
                     .cardinality = [=](const Stage& below) { return sharded(below.cardinality(), shards, index); },
                     .iterate =
                         [=](const Stage& below, const IterationContext& context) {
                           auto all = std::make_unique<EnoughForAll>(below.iterate(context), shards, index, too_few);
                           return take_shard(std::move(all), shards, index);
                         }});
}

}  // namespace lockstep::data
