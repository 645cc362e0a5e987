#include "lockstep/data/distribute/step_source.h"

#include <algorithm>

#include "lockstep/data/iterators.h"
#include "lockstep/data/own_tensor.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/stages/look_ahead.h"
#include "lockstep/data/stages/row_stream.h"

namespace lockstep::data {
namespace {

/// Whole elements of streams: of one stream to the replicas in turn, or of a stream for each replica.
class StreamSteps final : public StepSource {
 public:
  StreamSteps(const std::vector<StagePtr>& streams, int replicas, const IterationContext& context)
      : replicas_(static_cast<std::size_t>(replicas)), ended_(streams.size(), false) {
    for (const StagePtr& stream : streams) elements_.push_back(stream->iterate(context));
  }

  InputStep next() override {
    InputStep step{std::vector<std::optional<Element>>(replicas_)};
    std::exception_ptr error;  // the first; a step is read to its end, so that the next begins where it always would
    for (std::size_t k = 0; k < replicas_; ++k) {
      const std::size_t stream = is_dealt() ? 0 : k;
      Place place;
      if (ended_[stream] || !place.read(*elements_[stream])) {
        ended_[stream] = true;
        continue;
      }
      if (!error) error = place.error;
      step.elements[k] = std::move(place.element);
    }
    if (error) std::rethrow_exception(error);
    return step;
  }
  void locate(std::int64_t steps, Position& position) const override {
    for (const IteratorPtr& elements : elements_)
      elements->locate(steps * (is_dealt() ? static_cast<std::int64_t>(replicas_) : 1), position);
  }
  void restore(std::int64_t, Position& position) override {
    for (const IteratorPtr& elements : elements_) elements->restore(position);
  }

 private:
  bool is_dealt() const { return elements_.size() == 1; }

  std::size_t replicas_;
  std::vector<IteratorPtr> elements_;
  std::vector<bool> ended_;
};

/// What both ways of cutting global batches share: which pieces are a worker's own.
class OwnPieces : public StepSource {
 public:
  explicit OwnPieces(const GlobalSplit& split)
      : split_(split),
        replicas_(split.cluster.replicas()),
        first_(split.cluster.worker * split.cluster.replicas_per_worker),
        own_(split.cluster.replicas_per_worker) {}

 protected:
  InputStep end() {
    ended_ = true;
    return {std::vector<std::optional<Element>>(static_cast<std::size_t>(own_)), 0};
  }
  /// A batch of `rows` rows, of which the worker's pieces are to be filled in.
  InputStep step_of(std::int64_t rows) const {
    InputStep step{{}, replicas_};
    step.rows = {.all = rows, .has_empty = rows < replicas_};
    return step;
  }
  RowRange piece(std::int64_t rows, int k) const { return cut(SplitRule::Even, rows, replicas_, first_ + k); }

  const GlobalSplit split_;
  const int replicas_;
  const int first_;
  const int own_;
  bool ended_ = false;
};

/// Whole batches, each cut by itself. With one replica in all they are not cut.
class CutBatches final : public OwnPieces {
 public:
  CutBatches(const StagePtr& pipeline, const GlobalSplit& split, const IterationContext& context)
      : OwnPieces(split), batches_(pipeline->iterate(context)) {}

  void locate(std::int64_t steps, Position& position) const override { batches_->locate(steps, position); }
  void restore(std::int64_t, Position& position) override { batches_->restore(position); }

  InputStep next() override {
    Element batch;
    if (ended_ || !batches_->next(batch)) return end();
    InputStep step = step_of(common_rows(batch));
    if (split_.rule == SplitRule::None) {
      step.elements.emplace_back(std::move(batch));
      return step;
    }
    warn_before_cut(batch, *split_.warnings);
    for (int k = 0; k < own_; ++k) step.elements.emplace_back(piece_of(split_.rule, batch, replicas_, first_ + k));
    return step;
  }

 private:
  IteratorPtr batches_;
};

/// `rows` with a LookAhead below the last stages that pass rows over for nothing, such as `map`: they run for the rows
/// that are taken and no others. `ahead` is set when the rows are iterated.
StagePtr with_look_ahead(const StagePtr& rows, LookAhead*& ahead) {
  const StageTraits traits = rows->traits();
  if (traits.is_one_to_one() && traits.passes_over) return rows->with_inputs({with_look_ahead(rows->input(), ahead)});
  return make_stage({rows}, {.kind = "look_ahead",
                             .traits = {.is_measured = false},  // it is only a means of its reader
                             .iterate = [&ahead](const Stage& below, const IterationContext& context) {
                               auto iterator = std::make_unique<LookAhead>(below.iterate(context));
                               ahead = iterator.get();
                               return iterator;
                             }});
}

/// The own rows of each batch of a plain `batch`, and no others: those below it. A short last batch is cut at other rows
/// than a full one: where it is not known beforehand which batch that is, each is looked at before it is cut.
class OwnRows final : public OwnPieces {
 public:
  OwnRows(const StagePtr& pipeline, const GlobalSplit& split, const IterationContext& context)
      : OwnPieces(split), size_(*split.batch) {
    const StagePtr& rows = below_plain_stages(*pipeline).input();
    const Cardinality all = rows->cardinality_if(Trust::Certain);
    if (all.is_known()) known_ = all.value();
    const bool looks = all.is_unknown() && !split_.drop_remainder;
    rows_ = rows_of_elements(looks ? *with_look_ahead(rows, ahead_) : *rows, context);
  }

  void locate(std::int64_t steps, Position& position) const override {
    rows_->locate(skipped_input(steps, size_), position);
  }
  void restore(std::int64_t steps, Position& position) override {
    rows_->restore(position);
    step_ = steps;
  }

  InputStep next() override {
    if (ended_) return end();
    const std::int64_t batch = rows_of_batch();
    if (batch < size_ && (batch == 0 || split_.drop_remainder)) {
      rows_->skip(size_);  // the rest: a cache below wants to see all
      return end();
    }
    ++step_;
    InputStep step = step_of(batch);
    std::int64_t found = rows_->skip(piece(batch, 0).begin);
    std::exception_ptr error;  // the first; the step is read to its end
    for (int k = 0; k < own_; ++k) {
      Place own;
      found += rows_->take(piece(batch, k).size(), own);
      if (!error) error = own.error;
      step.elements.emplace_back(std::move(own.element));
    }
    found += rows_->skip(batch - piece(batch, own_ - 1).end);
    if (found < batch) return end();  // a short last batch, which is left out
    if (error) std::rethrow_exception(error);
    return step;
  }

 private:
  /// Of the next batch; a full one where only reading it will tell.
  std::int64_t rows_of_batch() {
    if (known_) return std::clamp<std::int64_t>(*known_ - step_ * size_, 0, size_);
    if (!ahead_) return size_;
    // The own rows of a shorter batch do not end behind those of a full one.
    return ahead_->look(size_, 0, piece(size_, own_ - 1).end);
  }

  const std::int64_t size_;
  std::optional<std::int64_t> known_;  ///< rows in all, where a short last batch must be known of beforehand
  LookAhead* ahead_ = nullptr;         ///< within `rows_`, where that is not known
  std::unique_ptr<RowStream> rows_;
  std::int64_t step_ = 0;
};

/// The memory that a replica's tensor reaches into, gaps included.
struct Reach {
  const char* begin;
  const char* end;
  std::size_t replica;
  at::Tensor* tensor;
  bool shared = false;
};

Reach reach_of(at::Tensor& tensor, std::size_t replica) {
  std::int64_t elements = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + elements * tensor.element_size(), replica, &tensor};
}

/// Marks what reaches into memory of another replica.
void mark_shared(std::vector<Reach>& all) {
  std::ranges::sort(all, {}, &Reach::begin);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && all[j].begin < all[i].end; ++j) {
      if (all[j].replica != all[i].replica) all[i].shared = all[j].shared = true;
    }
  }
}

}  // namespace

int InputStep::local_values() const {
  return static_cast<int>(std::ranges::count_if(elements, [](const auto& element) { return element.has_value(); }));
}

std::int64_t common_rows(const Element& element) {
  std::int64_t rows = -1;
  for (const Component& component : element.components) {
    const auto mine = std::holds_alternative<at::Tensor>(component) ? rows_of(component) : std::nullopt;
    if (!mine) continue;
    if (rows >= 0 && *mine != rows) return -1;
    rows = *mine;
  }
  return rows;
}

StepSource::~StepSource() = default;

std::unique_ptr<StepSource> whole_elements(const std::vector<StagePtr>& streams, int replicas,
                                           const IterationContext& context) {
  return std::make_unique<StreamSteps>(streams, replicas, context);
}

std::unique_ptr<StepSource> own_pieces(const StagePtr& pipeline, const GlobalSplit& split,
                                       const IterationContext& context) {
  check(split.cluster);
  // Functions that do not keep their order would give the rows of a short last batch in another one.
  const bool has_own_rows =
      split.rule != SplitRule::None && split.batch && split.cluster.workers > 1 && !find_position_obstacle(*pipeline);
  if (has_own_rows) return std::make_unique<OwnRows>(pipeline, split, context);
  return std::make_unique<CutBatches>(pipeline, split, context);
}

void separate_replicas(InputStep& step) {
  std::vector<Reach> all;
  for (std::size_t k = 0; k < step.elements.size(); ++k) {
    if (!step.elements[k]) continue;
    for (Component& component : step.elements[k]->components) {
      auto* tensor = std::get_if<at::Tensor>(&component);
      if (tensor == nullptr || !tensor->defined()) continue;
      if (tensor->layout() != at::kStrided) {
        *tensor = tensor->detach().clone();
        continue;
      }
      *tensor = own_tensor(*tensor);
      if (tensor->numel() > 0) all.push_back(reach_of(*tensor, k));
    }
  }
  mark_shared(all);
  for (const Reach& each : all)
    if (each.shared) *each.tensor = each.tensor->clone();
}

}  // namespace lockstep::data
