#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "lockstep/data/format/listed.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/random_key.h"

// Stages that combine several datasets, and code shared by stages with several inputs.
namespace lockstep::data {
namespace {

std::vector<IteratorPtr> iterate_inputs(const Stage& stage, const IterationContext& context) {
  std::vector<IteratorPtr> iterators;
  for (const StagePtr& input : stage.inputs()) iterators.push_back(input->iterate(context.below(iterators.size())));
  return iterators;
}

class ZipIterator final : public ElementIterator {
 public:
  explicit ZipIterator(std::vector<IteratorPtr> inputs) : inputs_(std::move(inputs)) {}

  bool next(Element& element) override {
    Place part;
    std::exception_ptr error;  // the first error; elements that belong together stay together
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (error ? inputs_[i]->skip(1) == 0 : !part.read(*inputs_[i])) {
        rethrow_if_fatal(error);
        return false;
      }
      if (!error) error = part.error;
      if (error) continue;
      if (i == 0)
        swap(element, part.element);
      else
        append(element, std::move(part.element));
    }
    if (error) std::rethrow_exception(error);
    return true;
  }
  std::int64_t skip(std::int64_t count) override {
    for (const IteratorPtr& input : inputs_) count = std::min(count, input->skip(count));
    return count;
  }
  void locate(std::int64_t consumed, Position& position) const override {
    for (const IteratorPtr& input : inputs_) input->locate(consumed, position);
  }
  void restore(Position& position) override {
    for (const IteratorPtr& input : inputs_) input->restore(position);
  }

 private:
  std::vector<IteratorPtr> inputs_;
};

Cardinality cardinality_of_zip(const Stage& zip) {
  Cardinality all = Cardinality::infinite();
  for (const StagePtr& input : zip.inputs()) all = zipped(all, input->cardinality());
  return all;
}

ElementSpec spec_of_zip(const Stage& zip) {
  ElementSpec spec = zip.input()->element_spec();
  for (std::size_t i = 1; i < zip.inputs().size(); ++i) spec = spec.joined_with(zip.inputs()[i]->element_spec());
  return spec;
}

/// The shortest text that parses back to the same number.
std::string exact_text(double number) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), written.ptr};
}

/// The same proportions, scaled so that their sum is finite.
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
        chosen = i;  // the last one with a weight, in case of a rounding error
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

void check_weights(const std::vector<double>& weights, std::size_t datasets) {
  const char* help = "call sample_from_datasets(datasets, {.weights = {0.7, 0.3}}), or leave the weights out";
  for (const double weight : weights) {
    if (weight >= 0 && !std::isinf(weight)) continue;
    refuse_option("sample_from_datasets", str("a weight must be a finite number >= 0, got ", weight), help);
  }
  const bool positive = std::ranges::any_of(weights, [](double weight) { return weight > 0; });
  if (datasets > 0 && weights.size() == datasets && positive) return;
  throw InvalidArgument(errors::kBadOption,
                        {.what = "sample_from_datasets needs datasets and one weight for each, one of them positive",
                         .seen = str(counted(static_cast<long long>(datasets), "dataset"), ", ",
                                     counted(static_cast<long long>(weights.size()), "weight")),
                         .help = help});
}

std::string text_of(const SampleOptions& options) {
  std::string text = str("sample_from_datasets(weights ", listed(options.weights, ", ", exact_text));
  if (options.seed) text += str(", seed ", *options.seed);
  return text + (options.stop_on_empty_dataset ? ", stops with the first)" : ")");
}

Cardinality cardinality_of(const Stage& sample, const SampleOptions& options) {
  if (options.stop_on_empty_dataset) return Cardinality::unknown();
  Cardinality all = 0;
  for (std::size_t i = 0; i < sample.inputs().size(); ++i)
    if (options.weights[i] > 0) all = concatenated(all, sample.inputs()[i]->cardinality());
  return all;
}

}  // namespace

ElementSpec common_spec(const std::vector<StagePtr>& datasets, const std::string& where) {
  ElementSpec spec = datasets.front()->element_spec();
  for (std::size_t i = 1; i < datasets.size(); ++i) {
    const ElementSpec other = datasets[i]->element_spec();
    if (const auto difference = find_difference(spec, other))
      throw InvalidArgument(errors::kStructure, {.what = "datasets of different elements cannot become one dataset",
                                                 .where = str(where, ", dataset ", i),
                                                 .seen = *difference,
                                                 .help = "map their elements to the same types and ranks first"});
    spec = spec.merged_with(other);
  }
  return spec;
}

StagePtr make_zip(std::vector<StagePtr> inputs) {
  if (inputs.empty())
    throw InvalidArgument(errors::kBadOption, {.what = "zip needs at least one dataset, got none",
                                               .help = "call zip with the datasets to put side by side"});
  return make_stage(std::move(inputs), {.kind = "zip",
                                        .traits = StageTraits::passing_over(StageTraits::Elements::Zipped),
                                        .takes_any_number = true,
                                        .cardinality = cardinality_of_zip,
                                        .spec = spec_of_zip,
                                        .iterate = [](const Stage& zip, const IterationContext& context) {
                                          return std::make_unique<ZipIterator>(iterate_inputs(zip, context));
                                        }});
}

StagePtr make_sample(std::vector<StagePtr> inputs, SampleOptions options) {
  if (options.weights.empty()) options.weights.assign(inputs.size(), 1.0);
  check_weights(options.weights, inputs.size());
  return make_stage(std::move(inputs),
                    {.kind = "sample_from_datasets",
                     .text = text_of(options),
                     .takes_any_number = true,
                     .cardinality = [options](const Stage& sample) { return cardinality_of(sample, options); },
                     .spec = [](const Stage& sample) { return common_spec(sample.inputs(), "sample_from_datasets"); },
                     .iterate =
                         [options](const Stage& sample, const IterationContext& context) {
                           const std::uint64_t seed = options.seed ? *options.seed : context.stage_seed();
                           return std::make_unique<SampleIterator>(iterate_inputs(sample, context), options.weights,
                                                                   mix(seed, context.epoch),
                                                                   options.stop_on_empty_dataset);
                         }});
}

}  // namespace lockstep::data
