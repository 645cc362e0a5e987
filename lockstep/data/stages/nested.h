#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/stage.h"

// Stages whose elements are, or become, datasets.
namespace lockstep::data {

/// Makes a dataset of an element.
using Expansion = std::function<StagePtr(Element&&)>;
using SpecFunction = std::function<ElementSpec(const ElementSpec&)>;

struct InterleaveOptions {
  int cycle_length = 4;           ///< datasets read in turn
  std::int64_t block_length = 1;  ///< elements taken from one before the next one's turn
  int parallel_calls = 0;       ///< more than 0: each open dataset is read ahead on a thread; the order stays the same
  SpecFunction spec = nullptr;  ///< what the elements look like; without it only what their type says is known
};

/// The first stage that cannot promise exact positions among the datasets that a function made, in words. They are not
/// part of the pipeline's tree, so it is known only once they are there. Written and read by any thread.
class MetObstacle {
 public:
  void note(const std::string& obstacle) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = obstacle;
  }
  std::optional<std::string> get() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> first_;
};

/// `f(element)` is a dataset for each element; their elements one dataset after the other (`flat_map`), or several
/// datasets in turn (`interleave`).
class LOCKSTEP_EXPORT InterleaveStage final : public Stage {
 public:
  /// With `cycle_length` 0 in place of options: flat_map.
  InterleaveStage(StagePtr input, Expansion expansion, ElementSpec result, std::optional<InterleaveOptions> options,
                  SpecFunction spec = nullptr);

  std::string_view kind() const override { return options_ ? "interleave" : "flat_map"; }
  std::string describe() const override;
  std::string identity() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  ElementSpec element_spec() const override;
  std::optional<std::string> position_obstacle() const override;

  /// The dataset that becomes of an element.
  StagePtr expand(Element&& element) const;
  /// Where passes note what they meet.
  const std::shared_ptr<MetObstacle>& met_obstacle() const { return met_obstacle_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  Expansion expansion_;
  ElementSpec result_;
  std::optional<InterleaveOptions> options_;
  SpecFunction spec_;
  std::shared_ptr<MetObstacle> met_obstacle_ = std::make_shared<MetObstacle>();
};

/// A few elements kept in memory, such as those of a window.
class LOCKSTEP_EXPORT ElementsStage final : public Stage {
 public:
  ElementsStage(std::vector<Element> elements, ElementSpec spec)
      : Stage({}), elements_(std::move(elements)), spec_(std::move(spec)) {}

  std::string_view kind() const override { return "elements"; }
  StagePtr with_inputs(std::vector<StagePtr>) const override { return shared_from_this(); }
  Cardinality cardinality() const override { return static_cast<std::int64_t>(elements_.size()); }
  ElementSpec element_spec() const override { return spec_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::vector<Element> elements_;
  ElementSpec spec_;
};

struct WindowOptions {
  std::int64_t shift = 0;   ///< elements from the start of a window to the start of the next; 0: its size
  std::int64_t stride = 1;  ///< elements from one to the next within a window
  bool drop_remainder = false;
};

/// Datasets of `size` elements each.
class LOCKSTEP_EXPORT WindowStage final : public Stage {
 public:
  WindowStage(StagePtr input, std::int64_t size, WindowOptions options);

  std::string_view kind() const override { return "window"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override;
  ElementSpec element_spec() const override { return {{{ComponentSpec::dataset()}}}; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::int64_t size_;
  WindowOptions options_;
};

struct SampleOptions {
  std::vector<double> weights = {};  ///< one for each dataset; none: all the same
  std::optional<std::uint64_t> seed = std::nullopt;
  bool stop_on_empty_dataset = false;  ///< ends with the first dataset that ends
};

/// Each element from one of several datasets, chosen at random.
class LOCKSTEP_EXPORT SampleStage final : public Stage {
 public:
  SampleStage(std::vector<StagePtr> inputs, SampleOptions options);

  std::string_view kind() const override { return "sample_from_datasets"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  Cardinality cardinality() const override { return cardinality_; }
  ElementSpec element_spec() const override { return spec_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  SampleOptions options_;
  Cardinality cardinality_ = Cardinality::unknown();
  ElementSpec spec_;
};

}  // namespace lockstep::data
