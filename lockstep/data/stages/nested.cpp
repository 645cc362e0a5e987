#include "lockstep/data/stages/nested.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/place.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/stages/combine.h"
#include "lockstep/data/stages/prefetch.h"
#include "lockstep/data/user_call.h"

namespace lockstep::data {
namespace {

/// The shortest text from which the same number is read again.
std::string exact_text(double number) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), written.ptr};
}

class InterleaveIterator final : public ElementIterator {
 public:
  InterleaveIterator(std::shared_ptr<const InterleaveStage> stage, IterationContext context, InterleaveOptions options)
      : stage_(std::move(stage)),
        context_(std::move(context)),
        options_(options),
        input_(stage_->input()->iterate(context_.below(0))),
        open_(static_cast<std::size_t>(options.cycle_length)) {
    context_ = context_.below(1);
    context_.meter = nullptr;  // the time of inner datasets counts as this stage's own
    // Functions within functions tell the stage that is part of the pipeline's tree.
    if (!context_.met_obstacle) context_.met_obstacle = stage_->met_obstacle();
  }

  // The order is TensorFlow's: a dataset that ends gives its turn to the next in the cycle, and its place is filled
  // from the input when it is its turn again.
  bool next(Element& element) override {
    while (ElementIterator* current = find_open()) {
      Place place;
      std::swap(place.element, element);
      if (!place.read(*current)) {
        close();
        continue;
      }
      pass(1);
      place.give(element);
      return true;
    }
    return false;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      ElementIterator* current = nullptr;
      try {
        current = find_open();
      } catch (...) {  // a dataset that cannot be opened has one place
        require_unwanted(std::current_exception());
        ++skipped;
        continue;
      }
      if (current == nullptr) break;
      const std::int64_t wanted = std::min(options_.block_length - in_block_, count - skipped);
      const std::int64_t got = current->skip(wanted);
      skipped += got;
      if (got < wanted)
        close();
      else
        pass(got);
    }
    return skipped;
  }

 private:
  /// The dataset whose turn it is, opened if need be; null at the end.
  ElementIterator* find_open() {
    while (!input_ended_ || open_count_ > 0) {
      if (!open_[place_] && !input_ended_) open_next(open_[place_]);
      if (open_[place_]) return open_[place_].get();
      next_place();
    }
    return nullptr;
  }

  void pass(std::int64_t count) {
    in_block_ += count;
    if (in_block_ == options_.block_length) next_place();
  }

  void close() {
    open_[place_] = nullptr;
    --open_count_;
    next_place();
  }

  void next_place() {
    in_block_ = 0;
    place_ = (place_ + 1) % open_.size();
  }

  void open_next(IteratorPtr& place) {
    Element element;
    if (!input_->next(element)) {
      input_ended_ = true;
      return;
    }
    const IterationContext inner = context_.pass(opened_++);
    const c10::AutoGradMode no_grad(false);
    const StagePtr made = stage_->expand(std::move(element));
    if (const auto obstacle = find_position_obstacle(*made)) context_.met_obstacle->note(*obstacle);
    place = made->iterate(inner);
    if (options_.parallel_calls > 0) place = read_ahead_in_chunks(std::move(place));
    ++open_count_;
  }

  std::shared_ptr<const InterleaveStage> stage_;
  IterationContext context_;
  InterleaveOptions options_;
  IteratorPtr input_;
  std::vector<IteratorPtr> open_;
  std::size_t place_ = 0;
  std::int64_t in_block_ = 0;
  std::size_t open_count_ = 0;
  std::uint64_t opened_ = 0;
  bool input_ended_ = false;
};

class ElementsIterator final : public ElementIterator {
 public:
  explicit ElementsIterator(std::vector<Element> elements) : elements_(std::move(elements)) {}
  bool next(Element& element) override {
    if (at_ == elements_.size()) return false;
    element = own_copy(elements_[at_++]);
    return true;
  }

 private:
  std::vector<Element> elements_;
  std::size_t at_ = 0;
};

/// Elements from the first to the last of a window; no more than there can be.
std::int64_t window_span(std::int64_t size, std::int64_t stride) {
  std::int64_t span = 0;
  if (__builtin_mul_overflow(size - 1, stride, &span) || __builtin_add_overflow(span, 1, &span))
    return std::numeric_limits<std::int64_t>::max();
  return span;
}

class WindowIterator final : public ElementIterator {
 public:
  WindowIterator(IteratorPtr input, std::int64_t size, WindowOptions options, ElementSpec spec)
      : input_(std::move(input)), size_(size), options_(options), spec_(std::move(spec)) {}

  bool next(Element& element) override {
    const auto span = static_cast<std::size_t>(window_span(size_, options_.stride));
    while (!ended_ && ahead_.size() < span) {
      Place fresh;
      if (to_skip_ > 0 && input_->skip(to_skip_) < to_skip_) ended_ = true;
      to_skip_ = 0;
      if (ended_ || !fresh.read(*input_)) {
        ended_ = true;
        break;
      }
      require_unwanted(fresh.error);  // it may be in no window
      ahead_.push_back(std::move(fresh));
    }
    std::vector<Element> window;
    std::exception_ptr error;  // a window with an element that failed fails as a whole
    for (std::size_t i = 0; i < ahead_.size() && i < span; i += static_cast<std::size_t>(options_.stride)) {
      window.push_back(ahead_[i].element);
      if (!error) error = ahead_[i].error;
    }
    if (window.empty() || (options_.drop_remainder && static_cast<std::int64_t>(window.size()) < size_)) return false;
    const auto drop = std::min<std::int64_t>(options_.shift, static_cast<std::int64_t>(ahead_.size()));
    ahead_.erase(ahead_.begin(), ahead_.begin() + drop);
    to_skip_ = options_.shift - drop;
    if (error) std::rethrow_exception(error);
    element = Element(std::vector<Component>{std::make_shared<const ElementsStage>(std::move(window), spec_)});
    return true;
  }

 private:
  IteratorPtr input_;
  std::int64_t size_;
  WindowOptions options_;
  ElementSpec spec_;
  std::deque<Place> ahead_;
  std::int64_t to_skip_ = 0;
  bool ended_ = false;
};

/// The same shares, so that their sum is a number.
std::vector<double> with_finite_sum(std::vector<double> weights) {
  if (std::isfinite(std::accumulate(weights.begin(), weights.end(), 0.0))) return weights;
  const double largest = *std::ranges::max_element(weights);
  for (double& weight : weights) weight /= largest;
  return weights;
}

class SampleIterator final : public ElementIterator {
 public:
  SampleIterator(std::vector<IteratorPtr> inputs, std::vector<double> weights, std::uint64_t key, bool stop_on_empty)
      : inputs_(std::move(inputs)),
        weights_(with_finite_sum(std::move(weights))),
        random_(key),
        stop_on_empty_(stop_on_empty) {}

  bool next(Element& element) override {
    return step([&](ElementIterator& chosen) { return chosen.next(element); });
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count && step([&](ElementIterator& chosen) { return chosen.skip(1) == 1; })) ++skipped;
    return skipped;
  }

 private:
  template <class Take>
  bool step(Take take) {
    while (!ended_) {
      double all = 0;
      for (const double weight : weights_) all += weight;
      if (all <= 0) break;
      double at = random_.uniform() * all;
      std::size_t chosen = weights_.size();
      for (std::size_t i = 0; i < weights_.size(); ++i) {
        if (weights_[i] <= 0) continue;
        chosen = i;  // the last one with a weight if rounding leaves something over
        if (at < weights_[i]) break;
        at -= weights_[i];
      }
      if (take(*inputs_[chosen])) return true;
      if (stop_on_empty_) break;
      weights_[chosen] = 0;
    }
    ended_ = true;
    return false;
  }

  std::vector<IteratorPtr> inputs_;
  std::vector<double> weights_;
  RandomStream random_;
  bool stop_on_empty_;
  bool ended_ = false;
};

}  // namespace

InterleaveStage::InterleaveStage(StagePtr input, Expansion expansion, ElementSpec result,
                                 std::optional<InterleaveOptions> options, SpecFunction spec)
    : Stage({std::move(input)}),
      expansion_(std::move(expansion)),
      result_(std::move(result)),
      options_(std::move(options)),
      spec_(options_ && options_->spec ? options_->spec : std::move(spec)) {
  if (options_ && (options_->cycle_length < 1 || options_->block_length < 1))
    throw InvalidArgument(errors::kBadOption,
                          {.what = "interleave needs a cycle and a block of at least 1", .where = describe()});
  if (options_ && options_->parallel_calls < 0)
    throw InvalidArgument(
        errors::kBadOption,
        {.what = str("parallel_calls must not be negative: ", options_->parallel_calls),
         .where = "interleave",
         .help =
             "give 0 to read on the caller's thread, or 1 to read every open dataset ahead on a thread of its own"});
}

std::string InterleaveStage::describe() const {
  if (!options_) return "flat_map";
  return str("interleave(cycle ", options_->cycle_length, ", block ", options_->block_length,
             options_->parallel_calls > 0 ? ", read ahead)" : ")");
}

std::string InterleaveStage::identity() const {
  if (!options_) return describe();
  return str("interleave(cycle ", options_->cycle_length, ", block ", options_->block_length, ")");
}

StagePtr InterleaveStage::with_inputs(std::vector<StagePtr> inputs) const {
  auto copy = std::make_shared<InterleaveStage>(std::move(inputs.front()), expansion_, result_, options_, spec_);
  copy->met_obstacle_ = met_obstacle_;
  return copy;
}

std::optional<std::string> InterleaveStage::position_obstacle() const {
  const auto met = met_obstacle_->get();
  return met ? std::optional(str("its function made a dataset with ", *met)) : std::nullopt;
}

Cardinality InterleaveStage::cardinality() const {
  return input()->cardinality() == Cardinality(0) ? Cardinality(0) : Cardinality::unknown();
}

ElementSpec InterleaveStage::element_spec() const { return spec_ ? spec_(input()->element_spec()) : result_; }

StagePtr InterleaveStage::expand(Element&& element) const {
  return call_for_stage(describe(), [&] { return expansion_(std::move(element)); });
}

IteratorPtr InterleaveStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<InterleaveIterator>(std::static_pointer_cast<const InterleaveStage>(shared_from_this()),
                                              context, options_.value_or(InterleaveOptions{.cycle_length = 1}));
}

IteratorPtr ElementsStage::make_iterator(const IterationContext&) const {
  return std::make_unique<ElementsIterator>(elements_);
}

WindowStage::WindowStage(StagePtr input, std::int64_t size, WindowOptions options)
    : Stage({std::move(input)}), size_(size), options_(options) {
  if (options_.shift == 0) options_.shift = size_;
  if (size_ < 1 || options_.shift < 1 || options_.stride < 1)
    throw InvalidArgument(errors::kBadOption,
                          {.what = "size, shift and stride of a window must be at least 1", .where = describe()});
}

std::string WindowStage::describe() const {
  return str("window(", size_, ", shift ", options_.shift, ", stride ", options_.stride,
             options_.drop_remainder ? ", drop_remainder)" : ")");
}

StagePtr WindowStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<WindowStage>(std::move(inputs.front()), size_, options_);
}

Cardinality WindowStage::cardinality() const {
  const Cardinality all = input()->cardinality();
  if (!all.is_known()) return all;
  const std::int64_t span = window_span(size_, options_.stride);
  if (options_.drop_remainder) return all.value() < span ? 0 : (all.value() - span) / options_.shift + 1;
  return all.value() / options_.shift + (all.value() % options_.shift > 0 ? 1 : 0);
}

IteratorPtr WindowStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<WindowIterator>(input()->iterate(context), size_, options_, input()->element_spec());
}

SampleStage::SampleStage(std::vector<StagePtr> inputs, SampleOptions options)
    : Stage(std::move(inputs)), options_(std::move(options)) {
  if (options_.weights.empty()) options_.weights.assign(this->inputs().size(), 1.0);
  bool positive = false;
  for (const double weight : options_.weights) {
    if (!(weight >= 0) || std::isinf(weight))
      throw InvalidArgument(errors::kBadOption,
                            {.what = str("a weight of sample_from_datasets must be a number from 0 up, not ", weight)});
    positive = positive || weight > 0;
  }
  if (this->inputs().empty() || options_.weights.size() != this->inputs().size() || !positive)
    throw InvalidArgument(errors::kBadOption,
                          {.what = "sample_from_datasets needs datasets and one weight for each, one of them positive",
                           .seen = str(counted(static_cast<long long>(this->inputs().size()), "dataset"), ", ",
                                       counted(static_cast<long long>(options_.weights.size()), "weight"))});
  spec_ = common_spec(this->inputs(), "sample_from_datasets");
  if (options_.stop_on_empty_dataset) return;
  cardinality_ = 0;
  for (std::size_t i = 0; i < this->inputs().size(); ++i)
    if (options_.weights[i] > 0) cardinality_ = concatenated(cardinality_, this->inputs()[i]->cardinality());
}

std::string SampleStage::describe() const {
  std::string text = "sample_from_datasets(weights ";
  for (std::size_t i = 0; i < options_.weights.size(); ++i) text += (i ? ", " : "") + exact_text(options_.weights[i]);
  if (options_.seed) text += str(", seed ", *options_.seed);
  return text + (options_.stop_on_empty_dataset ? ", stops with the first)" : ")");
}

StagePtr SampleStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<SampleStage>(std::move(inputs), options_);
}

IteratorPtr SampleStage::make_iterator(const IterationContext& context) const {
  std::vector<IteratorPtr> iterators;
  for (std::size_t i = 0; i < inputs().size(); ++i) iterators.push_back(inputs()[i]->iterate(context.below(i)));
  const std::uint64_t seed = options_.seed ? *options_.seed : context.stage_seed();
  return std::make_unique<SampleIterator>(std::move(iterators), options_.weights, mix(seed, context.epoch),
                                          options_.stop_on_empty_dataset);
}

}  // namespace lockstep::data
