#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/place.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/described_stage.h"
#include "lockstep/data/stages/stages.h"

// Stages that put datasets side by side or behind each other.
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

class ConcatenateIterator final : public ElementIterator {
 public:
  struct Part {
    StagePtr stage;
    IterationContext context;
  };
  explicit ConcatenateIterator(std::vector<Part> parts) : parts_(std::move(parts)) { open(); }

  bool next(Element& element) override {
    while (open()) {
      if (current_->next(element)) return true;
      current_ = nullptr;
    }
    return false;
  }
  std::int64_t skip(std::int64_t count) override {
    std::int64_t skipped = 0;
    while (skipped < count) {
      try {
        if (!open()) break;
      } catch (...) {
        rethrow_if_fatal(std::current_exception());
        ++skipped;
        continue;
      }
      skipped += current_->skip(count - skipped);
      if (skipped < count) current_ = nullptr;
    }
    return skipped;
  }

 private:
  /// Opens the next part if need be; false behind the last. One that cannot be opened is one place.
  bool open() {
    if (current_) return true;
    if (at_ == parts_.size()) return false;
    Part part = std::exchange(parts_[at_++], {});
    current_ = part.stage->iterate(part.context);
    return true;
  }

  std::vector<Part> parts_;
  std::size_t at_ = 0;
  IteratorPtr current_;  // null between parts
};

class ZipStage final : public Stage {
 public:
  explicit ZipStage(std::vector<StagePtr> all) : Stage(std::move(all)) {
    if (inputs().empty())
      throw InvalidArgument(errors::kBadOption, {.what = "zip needs at least one dataset, got none",
                                                 .help = "call zip with the datasets to put side by side"});
    for (const StagePtr& each : inputs()) cardinality_ = zipped(cardinality_, each->cardinality());
  }

  std::string_view kind() const override { return "zip"; }
  StageTraits traits() const override { return StageTraits::passing_over(StageTraits::Elements::Zipped); }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override { return make_zip(std::move(inputs)); }
  Cardinality cardinality() const override { return cardinality_; }
  ElementSpec element_spec() const override {
    ElementSpec spec = input()->element_spec();
    for (std::size_t i = 1; i < inputs().size(); ++i) spec = spec.joined_with(inputs()[i]->element_spec());
    return spec;
  }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    std::vector<IteratorPtr> iterators;
    for (std::size_t i = 0; i < inputs().size(); ++i) iterators.push_back(inputs()[i]->iterate(context.below(i)));
    return std::make_unique<ZipIterator>(std::move(iterators));
  }

 private:
  // Found once: a stage with several inputs may be the input of another one several times, and so on.
  Cardinality cardinality_ = Cardinality::infinite();
};

/// Programs build long chains of these in loops, so nothing here goes down a chain by recursion.
class ConcatenateStage final : public Stage {
 public:
  ConcatenateStage(StagePtr first, StagePtr second)
      : Stage({std::move(first), std::move(second)}),
        cardinality_(concatenated(inputs()[0]->cardinality(), inputs()[1]->cardinality())),
        spec_(common_spec(inputs(), "concatenate")) {}

  std::string_view kind() const override { return "concatenate"; }
  StageTraits traits() const override { return StageTraits::passing_over(StageTraits::Elements::Concatenated); }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override {
    return make_concatenate(std::move(inputs.at(0)), std::move(inputs.at(1)));
  }
  Cardinality cardinality() const override { return cardinality_; }
  Cardinality total_rows() const override { return concatenated(inputs()[0]->total_rows(), inputs()[1]->total_rows()); }
  ElementSpec element_spec() const override { return spec_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override {
    std::vector<ConcatenateIterator::Part> parts;
    IterationContext at = context;
    StagePtr first = shared_from_this();
    for (; first->traits().elements == StageTraits::Elements::Concatenated; first = first->input()) {
      parts.push_back({first->inputs()[1], at.below(1)});
      at = at.below(0);
    }
    parts.push_back({std::move(first), std::move(at)});
    std::ranges::reverse(parts);
    return std::make_unique<ConcatenateIterator>(std::move(parts));
  }

 private:
  Cardinality cardinality_;
  ElementSpec spec_;
};

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

StagePtr make_zip(std::vector<StagePtr> inputs) { return std::make_shared<ZipStage>(std::move(inputs)); }

StagePtr make_concatenate(StagePtr first, StagePtr second) {
  return std::make_shared<ConcatenateStage>(std::move(first), std::move(second));
}

}  // namespace lockstep::data
