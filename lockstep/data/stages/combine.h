#pragma once

#include <functional>

#include "lockstep/data/stage.h"

// Stages that put datasets side by side or behind each other, or carry something from element to element.
namespace lockstep::data {

/// Elements of several datasets side by side, as long as all have one.
class LOCKSTEP_EXPORT ZipStage final : public Stage {
 public:
  explicit ZipStage(std::vector<StagePtr> inputs);

  std::string_view kind() const override { return "zip"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return cardinality_; }
  ElementSpec element_spec() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  // Found once: a stage with several inputs may be the input of another one several times, and so on.
  Cardinality cardinality_ = Cardinality::infinite();
};

/// One dataset behind the other. Programs build long chains of them in loops, so nothing here goes down a chain by
/// recursion.
class LOCKSTEP_EXPORT ConcatenateStage final : public Stage {
 public:
  ConcatenateStage(StagePtr first, StagePtr second);

  std::string_view kind() const override { return "concatenate"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return cardinality_; }
  ElementSpec element_spec() const override { return spec_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Cardinality cardinality_;
  ElementSpec spec_;
};

/// What is true of the elements of all these datasets. InvalidArgument if they are known not to fit into one: `where`
/// names the stage.
ElementSpec common_spec(const std::vector<StagePtr>& datasets, const std::string& where);

/// Each element with its number in front.
class LOCKSTEP_EXPORT EnumerateStage final : public Stage {
 public:
  EnumerateStage(StagePtr input, std::int64_t start) : Stage({std::move(input)}), start_(start) {}

  std::string_view kind() const override { return "enumerate"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override;

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::int64_t start_;
};

/// Changes state and element in place.
using ScanFunction = std::function<void(Element& state, Element& element)>;

/// A map that carries a state from element to element.
class LOCKSTEP_EXPORT ScanStage final : public Stage {
 public:
  ScanStage(StagePtr input, Element initial, ScanFunction function, ElementSpec result,
            std::function<ElementSpec(const ElementSpec&)> spec = nullptr)
      : Stage({std::move(input)}),
        initial_(std::move(initial)),
        function_(std::move(function)),
        result_(std::move(result)),
        spec_(std::move(spec)) {}

  std::string_view kind() const override { return "scan"; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return input()->cardinality(); }
  ElementSpec element_spec() const override { return spec_ ? spec_(input()->element_spec()) : result_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Element initial_;
  ScanFunction function_;
  ElementSpec result_;
  std::function<ElementSpec(const ElementSpec&)> spec_;
};

}  // namespace lockstep::data
