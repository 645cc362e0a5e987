#include <algorithm>

#include "lockstep/data/iterators.h"

// Datasets side by side, and what stages of several inputs share.
namespace lockstep::data {
namespace {

class ZipIterator final : public ElementIterator {
 public:
  explicit ZipIterator(std::vector<IteratorPtr> inputs) : inputs_(std::move(inputs)) {}

  bool next(Element& element) override {
    Place part;
    std::exception_ptr error;  // the first one; what belongs together stays together
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (error ? inputs_[i]->skip(1) == 0 : !part.read(*inputs_[i])) {
        rethrow_if_fatal(error);
        return false;
      }
      if (!error) error = part.error;
      if (error) continue;
      if (i == 0)
        std::swap(element, part.element);
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

std::vector<IteratorPtr> iterate_inputs(const Stage& stage, const IterationContext& context) {
  std::vector<IteratorPtr> iterators;
  for (const StagePtr& input : stage.inputs()) iterators.push_back(input->iterate(context.below(iterators.size())));
  return iterators;
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

}  // namespace lockstep::data
