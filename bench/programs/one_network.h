#pragma once

#include <lockstep/data/torch_dataset.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/keep_memory.h"
#include "lockstep/strategy/huge_blocks.h"
#include "program.h"

namespace lockstep::bench {

/// Rows of made data, read one by one as torch::data does.
struct Rows : torch::data::Dataset<Rows> {
  Rows(torch::Tensor of_inputs, torch::Tensor of_targets)
      : inputs(std::move(of_inputs)), targets(std::move(of_targets)) {}
  torch::data::Example<> get(std::size_t i) override {
    return {inputs[static_cast<std::int64_t>(i)], targets[static_cast<std::int64_t>(i)]};
  }
  torch::optional<std::size_t> size() const override { return inputs.size(0); }

  torch::Tensor inputs, targets;
};

inline void prepare_plain(const ProgramOptions& options) {
  if (options.keep_memory) {  // as MirroredOptions::keep_memory does
    keep_freed_memory();
    keep_huge_blocks();
  }
  if (options.threads > 0) torch::set_num_threads(options.threads);
}

/// A loader's batches, pass after pass.
template <class Dataset>
class EndlessLoader {
 public:
  EndlessLoader(Dataset rows, std::int64_t batch)
      : loader_(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
            std::move(rows), torch::data::DataLoaderOptions(static_cast<std::size_t>(batch)).drop_last(true))) {}

  torch::data::Example<> next() {
    if (!place_ || *place_ == loader_->end()) place_.emplace(loader_->begin());
    auto batch = **place_;
    ++*place_;
    return batch;
  }

 private:
  using Loader = torch::data::StatelessDataLoader<Dataset, torch::data::samplers::RandomSampler>;
  std::unique_ptr<Loader> loader_;
  std::optional<decltype(std::declval<Loader&>().begin())> place_;
};

/// How often a call of the step computes.
inline int repetitions(Part part) { return part == Part::Apart ? 10 : 1; }

template <class Dataset>
auto stacked(Dataset rows) {
  return std::move(rows).map(torch::data::transforms::Stack<>());
}

/// A program with one network. `P` has
///
///     struct Net;                                       a module holder
///     static Rows rows();                               the data
///     static auto transformed(Rows);                    the dataset with its transforms
///     static torch::Tensor losses(Net::Impl&, const Example<>&);   one for each row
///     static auto optimizer_options();
///     using Optimizer = torch::optim::...;
template <class P>
Step plain_program(const ProgramOptions& options) {
  prepare_plain(options);
  torch::manual_seed(1);
  typename P::Net net;
  auto optimizer = std::make_shared<typename P::Optimizer>(net->parameters(), P::optimizer_options());
  auto dataset = stacked(P::transformed(P::rows()));
  auto loader = std::make_shared<EndlessLoader<decltype(dataset)>>(std::move(dataset), options.batch);
  const auto first = loader->next();
  return [=]() mutable {
    const auto batch = options.part == Part::All ? loader->next() : first;
    for (int k = 0; k < repetitions(options.part); ++k) {
      optimizer->zero_grad();
      auto loss = P::losses(*net, batch).mean();
      loss.backward();
    }
    if (options.part <= Part::WithoutInput) optimizer->step();
  };
}

inline std::shared_ptr<MirroredStrategy> strategy_of(const ProgramOptions& options) {
  torch::manual_seed(1);
  return std::make_shared<MirroredStrategy>(MirroredOptions{.devices = cpus(options.replicas)});
}

/// The batches of a distributed dataset, pass after pass.
template <class T>
class EndlessBatches {
 public:
  explicit EndlessBatches(DistributedDataset<T> batches) : batches_(std::move(batches)) {}

  PerReplica<T> next() {
    for (;;) {
      if (!steps_) steps_.emplace(batches_.iterator());
      if (auto batch = steps_->next()) return *std::move(batch);
      steps_.reset();
    }
  }

 private:
  DistributedDataset<T> batches_;
  std::optional<decltype(std::declval<DistributedDataset<T>&>().iterator())> steps_;
};

/// `dataset` in shuffled batches, as a port of a DataLoader with a RandomSampler reads it.
template <class T>
std::shared_ptr<EndlessBatches<T>> shuffled_batches(MirroredStrategy& strategy, const data::Dataset<T>& dataset,
                                                    std::int64_t rows, std::int64_t batch) {
  return std::make_shared<EndlessBatches<T>>(
      strategy.distribute(dataset.shuffle(rows).batch(batch, {.drop_remainder = true})));
}

template <class P>
Step lockstep_program(const ProgramOptions& options) {
  using Pair = std::pair<torch::Tensor, torch::Tensor>;
  auto strategy = strategy_of(options);
  auto net = strategy->template make<typename P::Net>();
  auto optimizer = strategy->template make_optimizer<typename P::Optimizer>(net, P::optimizer_options());
  const Rows rows = P::rows();
  const auto dataset = options.rows_one_by_one ? data::from_torch_dataset(P::transformed(rows))
                                               : data::from_tensor_slices(Pair{rows.inputs, rows.targets});
  auto batches = shuffled_batches(*strategy, dataset, *rows.size(), options.batch);
  const auto first = batches->next();
  auto train = [=](const Pair& mine) mutable {
    optimizer.minimize(average_loss(P::losses(*net, {mine.first, mine.second})));
  };
  const auto compute = [=](const Pair& mine) {
    for (int k = 0; k < repetitions(options.part); ++k) {
      P::losses(*net, {mine.first, mine.second}).mean().backward();
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    }
  };
  return [=]() mutable {
    if (options.part == Part::All) return strategy->run(train, batches->next());
    if (options.part == Part::WithoutInput) return strategy->run(train, first);
    return strategy->run(compute, first);
  };
}

template <class P>
Program one_network(std::int64_t batch) {
  return {batch, [](const ProgramOptions& options) {
            return options.replicas == 0 ? plain_program<P>(options) : lockstep_program<P>(options);
          }};
}

}  // namespace lockstep::bench
