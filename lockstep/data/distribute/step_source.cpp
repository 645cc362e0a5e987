#include "lockstep/data/distribute/step_source.h"

#include <algorithm>

#include "lockstep/data/distribute/own_rows.h"
#include "lockstep/data/iterator.h"
#include "lockstep/data/own_tensor.h"

namespace lockstep::data {
namespace {

/// The memory range of a replica's tensor, gaps included.
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

/// Marks tensors that overlap another replica's memory.
void mark_shared(std::vector<Reach>& all) {
  std::ranges::sort(all, {}, &Reach::begin);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && all[j].begin < all[i].end; ++j) {
      if (all[j].replica != all[i].replica) all[i].shared = all[j].shared = true;
    }
  }
}

/// Detaches every tensor of a step from any graph or base, and copies those that share memory with another replica's: a
/// function may return the same tensor for every element.
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

/// Whole elements of streams: one stream dealt to the replicas in turn, or one stream per replica.
class StreamSteps final : public StepSource {
 public:
  StreamSteps(const std::vector<StagePtr>& streams, int replicas, const IterationContext& context)
      : replicas_(static_cast<std::size_t>(replicas)), ended_(streams.size(), false) {
    for (const StagePtr& stream : streams) elements_.push_back(stream->iterate(context));
  }

  InputStep next() override {
    InputStep step{std::vector<std::optional<Element>>(replicas_)};
    std::exception_ptr error;  // the first error; a step is read to its end, so that the next begins at its usual place
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
    separate_replicas(step);
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

/// Whole batches, each cut separately. With a single replica they are not cut.
class CutBatches final : public StepSource {
 public:
  CutBatches(const StagePtr& pipeline, const GlobalSplit& split, const IterationContext& context)
      : split_(split), batches_(pipeline->iterate(context)) {}

  void locate(std::int64_t steps, Position& position) const override { batches_->locate(steps, position); }
  void restore(std::int64_t, Position& position) override { batches_->restore(position); }

  InputStep next() override {
    Element batch;
    ended_ = ended_ || !batches_->next(batch);
    if (ended_) return InputStep::end(split_.cluster);
    const std::int64_t rows = common_rows(batch);
    InputStep step{.elements = {}, .total = split_.cluster.replicas()};
    step.rows = {.all = rows, .has_empty = rows < split_.cluster.replicas()};
    if (split_.rule == SplitRule::None) {
      step.elements.emplace_back(std::move(batch));
    } else {
      warn_before_cut(batch, *split_.warnings);
      const int own = split_.cluster.replicas_per_worker, first = split_.cluster.worker * own;
      for (int k = first; k < first + own; ++k)
        step.elements.emplace_back(piece_of(split_.rule, batch, split_.cluster.replicas(), k));
    }
    separate_replicas(step);
    return step;
  }

 private:
  const GlobalSplit split_;
  IteratorPtr batches_;
  bool ended_ = false;
};

}  // namespace

int InputStep::local_values() const {
  return static_cast<int>(std::ranges::count_if(elements, [](const auto& element) { return element.has_value(); }));
}

InputStep InputStep::end(const ClusterShape& cluster) {
  return {std::vector<std::optional<Element>>(static_cast<std::size_t>(cluster.replicas_per_worker)), 0};
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
  if (can_read_own_rows(*pipeline, split, context)) return read_own_rows(*pipeline, split, context);
  return std::make_unique<CutBatches>(pipeline, split, context);
}

}  // namespace lockstep::data
