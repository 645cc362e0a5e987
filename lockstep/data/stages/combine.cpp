#include "lockstep/data/stages/combine.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/one_to_one.h"
#include "lockstep/data/place.h"
#include "lockstep/data/user_call.h"

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
        require_unwanted(error);
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
        require_unwanted(std::current_exception());
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

class EnumerateIterator final : public CountingIterator {
 public:
  EnumerateIterator(IteratorPtr input, std::int64_t start) : CountingIterator(std::move(input)), start_(start) {}

  bool next(Element& element) override {
    if (!next_input(element)) return false;
    Element numbered = Element::of(at::scalar_tensor(start_ + count_ - 1, at::kLong));
    append(numbered, std::move(element));
    element = std::move(numbered);
    return true;
  }

 private:
  std::int64_t start_;
};

class ScanIterator final : public ElementIterator {
 public:
  ScanIterator(IteratorPtr input, Element state, ScanFunction function)
      : input_(std::move(input)), state_(own_copy(std::move(state))), function_(std::move(function)) {}

  bool next(Element& element) override {
    if (!input_->next(element)) return false;
    const c10::AutoGradMode no_grad(false);
    call_for_stage("scan", [&] { function_(state_, element); });
    return true;
  }

 private:
  IteratorPtr input_;
  Element state_;
  ScanFunction function_;
};

}  // namespace

ZipStage::ZipStage(std::vector<StagePtr> inputs) : Stage(std::move(inputs)) {
  if (this->inputs().empty()) throw InvalidArgument(errors::kBadOption, {.what = "zip needs at least one dataset"});
  for (const StagePtr& each : this->inputs()) cardinality_ = zipped(cardinality_, each->cardinality());
}
StagePtr ZipStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<ZipStage>(std::move(inputs));
}
ElementSpec ZipStage::element_spec() const {
  ElementSpec spec = input()->element_spec();
  for (std::size_t i = 1; i < inputs().size(); ++i) spec = spec.joined_with(inputs()[i]->element_spec());
  return spec;
}
IteratorPtr ZipStage::make_iterator(const IterationContext& context) const {
  std::vector<IteratorPtr> iterators;
  for (std::size_t i = 0; i < inputs().size(); ++i) iterators.push_back(inputs()[i]->iterate(context.below(i)));
  return std::make_unique<ZipIterator>(std::move(iterators));
}

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

ConcatenateStage::ConcatenateStage(StagePtr first, StagePtr second)
    : Stage({std::move(first), std::move(second)}),
      cardinality_(concatenated(inputs()[0]->cardinality(), inputs()[1]->cardinality())),
      spec_(common_spec(inputs(), "concatenate")) {}
StagePtr ConcatenateStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<ConcatenateStage>(std::move(inputs.at(0)), std::move(inputs.at(1)));
}
IteratorPtr ConcatenateStage::make_iterator(const IterationContext& context) const {
  std::vector<ConcatenateIterator::Part> parts;
  IterationContext at = context;
  StagePtr first = shared_from_this();
  for (; first->kind() == kind(); first = first->input()) {
    parts.push_back({first->inputs()[1], at.below(1)});
    at = at.below(0);
  }
  parts.push_back({std::move(first), std::move(at)});
  std::ranges::reverse(parts);
  return std::make_unique<ConcatenateIterator>(std::move(parts));
}

StagePtr EnumerateStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<EnumerateStage>(std::move(inputs.front()), start_);
}
ElementSpec EnumerateStage::element_spec() const {
  const ElementSpec number{{{ComponentSpec::tensor(at::kLong, PartialShape({}))}}};
  return number.joined_with(input()->element_spec());
}
IteratorPtr EnumerateStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<EnumerateIterator>(input()->iterate(context), start_);
}

StagePtr ScanStage::with_inputs(std::vector<StagePtr> inputs) const {
  return std::make_shared<ScanStage>(std::move(inputs.front()), initial_, function_, result_, spec_);
}
IteratorPtr ScanStage::make_iterator(const IterationContext& context) const {
  return std::make_unique<ScanIterator>(input()->iterate(context), initial_, function_);
}

}  // namespace lockstep::data
