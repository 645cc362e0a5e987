#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/data/dataset.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/pass_source.h"
#include "lockstep/values/per_replica.h"

namespace lockstep::train {

namespace detail {

template <class T>
class BatchSource : public PassSource {
 public:
  std::optional<PerReplica<T>> next() {
    auto batch = take();
    if (batch) ++*this->taken_;
    return batch;
  }

 protected:
  virtual std::optional<PerReplica<T>> take() = 0;
  bool skip_step() final { return next().has_value(); }
};

template <class T>
class DistributedSource final : public BatchSource<T> {
 public:
  explicit DistributedSource(data::Dataset<T> dataset) : dataset_(std::move(dataset)) {}
  explicit DistributedSource(DistributedDataset<T> distributed) : distributed_(std::move(distributed)) {}

  void start_pass(Strategy& strategy) override {
    pass_.reset();  // its reader ends before the next one begins
    // The seed of now: after a resume it is the interrupted training's, whatever the program has seeded since.
    pass_.emplace(distributed(strategy).iterator({.job_seed = strategy.seed()}));
    obstacle_ = distributed(strategy).position_obstacle();
    this->taken_ = 0;
  }
  bool wait_for(std::chrono::milliseconds limit) override { return pass_->wait_for(limit); }
  std::optional<std::int64_t> steps(Strategy& strategy) override {
    const data::Cardinality steps = distributed(strategy).cardinality();
    return steps.is_known() ? std::optional(steps.value()) : std::nullopt;
  }
  std::optional<std::string> place_obstacle(Strategy& strategy) override {
    return distributed(strategy).position_obstacle();
  }

 private:
  std::optional<PerReplica<T>> take() override { return pass_->next(); }
  std::shared_ptr<Stateful> place() override { return obstacle_ ? nullptr : state_of(*pass_); }

  DistributedDataset<T>& distributed(Strategy& strategy) {
    if (!distributed_) distributed_ = strategy.distribute(dataset_);
    return *distributed_;
  }

  data::Dataset<T> dataset_;
  std::optional<DistributedDataset<T>> distributed_;
  std::optional<DistributedIterator<T>> pass_;
  std::optional<std::string> obstacle_;
};

/// A loader of `torch::data`, or anything else that gives batches in a range-based `for`.
template <class Loader>
class LoaderSource final : public BatchSource<std::remove_cvref_t<decltype(*std::declval<Loader&>().begin())>> {
  using T = std::remove_cvref_t<decltype(*std::declval<Loader&>().begin())>;
  using Position = decltype(std::declval<Loader&>().begin());

 public:
  explicit LoaderSource(Loader& loader) : loader_(&loader) {}

  void start_pass(Strategy& strategy) override {
    strategy_ = &strategy;
    position_.reset();
    position_.emplace(loader_->begin());
    is_first_ = true;
    this->taken_ = 0;
  }
  std::optional<std::int64_t> steps(Strategy&) override { return std::nullopt; }
  std::optional<std::string> place_obstacle(Strategy&) override { return "a data loader of the program's own"; }

 private:
  std::optional<PerReplica<T>> take() override {
    if (!is_first_) ++*position_;  // fetches, so not before it is asked for
    is_first_ = false;
    if (!(*position_ != loader_->end())) return std::nullopt;
    return strategy_->split(static_cast<const T&>(**position_));
  }
  std::shared_ptr<Stateful> place() override { return nullptr; }

  Loader* loader_;
  Strategy* strategy_ = nullptr;
  std::optional<Position> position_;
  bool is_first_ = true;
};

/// Gives batches of T in a range-based `for`, as the loaders of `torch::data` do.
template <class Loader, class T>
concept LoaderOf = requires(Loader& loader) {
  { *loader.begin() } -> std::convertible_to<const T&>;
  loader.end();
};

}  // namespace detail

/// Where a loop's batches come from: a dataset of global batches, one that was distributed already, or a `torch::data` loader.
///
///     ls::train::Batches batches(digits.shuffle(4096).batch(64));
///     for (const auto& batch : loop.steps(batches)) strategy.run(step, batch);
///
/// With several workers, each worker's loader gives the rows of its own replicas.
template <class T>
class Batches {
 public:
  using value_type = T;

  Batches() = default;               ///< none
  Batches(data::Dataset<T> dataset)  // NOLINT(google-explicit-constructor)
      : Batches(std::make_shared<detail::DistributedSource<T>>(dataset),
                std::make_shared<detail::DistributedSource<T>>(dataset)) {}
  Batches(DistributedDataset<T> distributed)  // NOLINT(google-explicit-constructor)
      : Batches(std::make_shared<detail::DistributedSource<T>>(std::move(distributed)), nullptr) {}
  /// The loader must outlive it.
  template <detail::LoaderOf<T> Loader>
  explicit Batches(Loader& loader)
      : Batches(std::make_shared<detail::LoaderSource<Loader>>(loader),
                std::make_shared<detail::LoaderSource<Loader>>(loader)) {}

  explicit operator bool() const { return for_training_ != nullptr; }
  /// For library code.
  detail::BatchSource<T>& source(bool training) const {
    return training || for_validation_ == nullptr ? *for_training_ : *for_validation_;
  }

 private:
  using Source = std::shared_ptr<detail::BatchSource<T>>;
  Batches(Source for_training, Source for_validation)
      : for_training_(std::move(for_training)), for_validation_(std::move(for_validation)) {}

  /// Each has a place of its own in the data. Null: the same, because a distributed dataset counts its passes.
  Source for_training_, for_validation_;
};

template <class T>
Batches(data::Dataset<T>) -> Batches<T>;
template <class T>
Batches(DistributedDataset<T>) -> Batches<T>;
template <class Loader>
Batches(Loader&) -> Batches<std::remove_cvref_t<decltype(*std::declval<Loader&>().begin())>>;

}  // namespace lockstep::train
