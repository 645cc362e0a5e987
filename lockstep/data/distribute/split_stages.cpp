#include "lockstep/data/distribute/split_stages.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/distributed_spec.h"
#include "lockstep/data/distribute/row_stream.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/place.h"

namespace lockstep::data {
namespace {

std::vector<StaticShape> shapes_of(const ElementSpec& spec) {
  std::vector<StaticShape> shapes;
  for (const ComponentSpec& component : *spec.components) {
    shapes.push_back(component.shape.has_rank() ? component.shape.dims() : StaticShape{kUnknownDim});
  }
  return shapes;
}

/// `spec` with the first dimension of each component taken from `shapes`.
ElementSpec with_rows_of(ElementSpec spec, const std::vector<StaticShape>& shapes) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    ComponentSpec& component = (*spec.components)[i];
    if (!shapes[i].empty()) component.shape = component.shape.with_dim0(shapes[i].front());
  }
  return spec;
}

class BalancedStreamIterator final : public ElementIterator {
 public:
  BalancedStreamIterator(std::unique_ptr<RowStream> rows, BalancedCutter cutter, bool has_empty_pieces)
      : rows_(std::move(rows)), cutter_(std::move(cutter)), has_empty_pieces_(has_empty_pieces) {}

  bool next(Element& element) override {
    if (ended_) return false;
    const std::int64_t got = rows_->take(cutter_.wanted(), piece_);
    if (!advance(got)) return false;
    piece_.give(element);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    if (has_empty_pieces_) rows_->look();  // one of them may come when there is no row left to look at
    // All rows at once, so that whole batches can be left out.
    std::int64_t rows = 0;
    BalancedCutter ahead = cutter_;
    const std::int64_t cycles = count / ahead.cycle_length();
    if (cycles > 0) rows = skipped_input(cycles, ahead.cycle_rows());
    for (std::int64_t i = cycles * ahead.cycle_length(); i < count; ++i, ahead.advance()) rows += ahead.wanted();
    std::int64_t left = rows_->skip(rows);
    if (left == rows) {
      cutter_ = std::move(ahead);
      return count;
    }
    std::int64_t skipped = 0;
    for (; !ended_; ++skipped) {
      const std::int64_t got = std::min(left, cutter_.wanted());
      left -= got;
      if (!advance(got)) break;
    }
    return skipped;
  }

 private:
  bool advance(std::int64_t got) {
    const bool accepted = cutter_.accepts(got);
    ended_ = !accepted || got < cutter_.wanted();
    cutter_.advance();
    return accepted;
  }

  std::unique_ptr<RowStream> rows_;
  BalancedCutter cutter_;
  bool has_empty_pieces_;
  Place piece_;
  bool ended_ = false;
};

class BalancedStreamStage final : public Stage {
 public:
  BalancedStreamStage(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder)
      : Stage({std::move(batches)}), sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {
    BalancedCutter check(sizes_, drop_remainder_);
  }

  std::string_view kind() const override { return "rebatch"; }
  std::string describe() const override {
    std::string text = "rebatch(";
    for (std::size_t i = 0; i < sizes_.size(); ++i) text += str(i ? ", " : "", sizes_[i]);
    return text + (drop_remainder_ ? ", drop_remainder)" : ")");
  }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<BalancedStreamStage>(std::move(inputs.at(0)), sizes_, drop_remainder_);
  }
  Cardinality cardinality() const override {
    return input()->cardinality().is_infinite() ? Cardinality::infinite() : Cardinality::unknown();
  }
  ElementSpec element_spec() const override {
    ElementSpec spec = input()->element_spec();
    return spec.is_known() ? with_rows_of(spec, rebatched_shapes(shapes_of(spec), sizes_, drop_remainder_)) : spec;
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<BalancedStreamIterator>(rows_of_batches(*input(), context),
                                                    BalancedCutter(sizes_, drop_remainder_),
                                                    std::ranges::find(sizes_, 0) != sizes_.end());
  }

 private:
  std::vector<std::int64_t> sizes_;
  bool drop_remainder_;
};

class CeilSplitIterator final : public ElementIterator {
 public:
  CeilSplitIterator(IteratorPtr batches, int pieces, std::shared_ptr<std::atomic<bool>> told)
      : batches_(std::move(batches)), pieces_(pieces), next_(pieces), told_(std::move(told)) {}

  bool next(Element& element) override {
    if (next_ == pieces_) {
      if (!batch_.read(*batches_)) return false;
      next_ = 0;
      if (told_ && !batch_.error) tell_unequal_rows(batch_.element, *told_);
    }
    ++next_;
    if (batch_.error) std::rethrow_exception(batch_.error);  // each piece of a batch that failed
    element = ceil_piece_of(batch_.element, pieces_, next_ - 1);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = std::min<std::int64_t>(count, pieces_ - next_);
    next_ += static_cast<int>(skipped);
    skipped += batches_->skip((count - skipped) / pieces_) * pieces_;
    return skipped + ElementIterator::skip(count - skipped);
  }

 private:
  IteratorPtr batches_;
  int pieces_;
  int next_;
  std::shared_ptr<std::atomic<bool>> told_;
  Place batch_;
};

class CeilSplitStage final : public Stage {
 public:
  CeilSplitStage(StagePtr batches, int pieces, std::shared_ptr<std::atomic<bool>> told)
      : Stage({std::move(batches)}), pieces_(pieces), told_(std::move(told)) {
    if (pieces_ < 1) {
      throw InvalidArgument(errors::kBadOption, {.what = str("a batch cannot be cut into ", pieces_, " pieces"),
                                                 .where = "ceil_split",
                                                 .help = "there is a piece for each replica, so at least 1"});
    }
  }

  std::string_view kind() const override { return "ceil_split"; }
  std::string describe() const override { return str("ceil_split(", pieces_, ")"); }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<CeilSplitStage>(std::move(inputs.at(0)), pieces_, told_);
  }
  Cardinality cardinality() const override {
    const Cardinality batches = input()->cardinality();
    return multiplied(batches, pieces_);
  }
  ElementSpec element_spec() const override {
    ElementSpec spec = input()->element_spec();
    return spec.is_known() ? with_rows_of(spec, ceil_split_shapes(shapes_of(spec), pieces_)) : spec;
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    return std::make_unique<CeilSplitIterator>(input()->iterate(context), pieces_, told_);
  }

 private:
  int pieces_;
  std::shared_ptr<std::atomic<bool>> told_;
};

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

class RequiredShardStage final : public PassThroughStage {
 public:
  RequiredShardStage(StagePtr input, int shards, int index, TooFew too_few)
      : PassThroughStage({std::move(input)}), shards_(shards), index_(index), too_few_(too_few) {}

  std::string_view kind() const override { return "shard"; }
  std::string describe() const override { return str("shard(", shards_, ", ", index_, ", one for each at least)"); }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return std::make_shared<RequiredShardStage>(std::move(inputs.at(0)), shards_, index_, too_few_);
  }
  Cardinality cardinality() const override { return sharded(input()->cardinality(), shards_, index_); }

  int shards() const { return shards_; }

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

StagePtr make_balanced_stream(StagePtr batches, std::vector<std::int64_t> sizes, bool drop_remainder) {
  return std::make_shared<BalancedStreamStage>(std::move(batches), std::move(sizes), drop_remainder);
}

StagePtr make_ceil_split(StagePtr batches, int pieces, std::shared_ptr<std::atomic<bool>> told) {
  return std::make_shared<CeilSplitStage>(std::move(batches), pieces, std::move(told));
}

void tell_unequal_rows(const Element& batch, std::atomic<bool>& told) {
  const auto rows = [](const Component& component) { return component_rows(component, "splitting a batch"); };
  for (const Component& component : batch.components) {
    if (rows(component) == rows(batch.components.front()) || told.exchange(true)) continue;
    log_warning(str("distribute: the components of a batch have ", rows(batch.components.front()), " and ",
                    rows(component),
                    " rows. Each is cut by itself, so rows that belong together may go to different replicas."));
  }
}

StagePtr make_required_shard(StagePtr input, int shards, int index, TooFew too_few) {
  return std::make_shared<RequiredShardStage>(std::move(input), shards, index, too_few);
}

const Stage* input_of_required_shard(const Stage& stage) {
  return dynamic_cast<const RequiredShardStage*>(&stage) ? stage.input().get() : nullptr;
}

int shards_of_required_shard(const Stage& stage) {
  const auto* shard = dynamic_cast<const RequiredShardStage*>(&stage);
  return shard ? shard->shards() : 0;
}

Element ceil_piece_of(const Element& batch, int pieces, int k) {
  Element piece;
  piece.skeleton = batch.skeleton;
  piece.components.reserve(batch.size());
  for (const Component& component : batch.components) {
    const RowRange rows = ceil_piece(component_rows(component, "splitting a batch"), pieces, k);
    piece.components.push_back(slice(component, rows.begin, rows.end));
  }
  return piece;
}

}  // namespace lockstep::data
