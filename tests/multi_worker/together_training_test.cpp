#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/multi_worker/together.h"
#include "tests/support/logged_lines.h"

// Models, data, training steps and saved files.
namespace together {
namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    register_module("layer", layer);
    register_module("norm", norm);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layer->forward(norm->forward(x)); }
  nn::Linear layer{4, 2};
  nn::BatchNorm1d norm{4};
};

TEST_F(Together, ModelsBeginWithTheChiefsValues) {
  auto model = strategy.make([&] {
    Net net;
    const torch::NoGradGuard no_grad;
    net.layer->weight.fill_(rank + 1);
    net.norm->running_mean.fill_(rank + 1);
    return std::make_shared<Net>(net);
  });
  EXPECT_EQ(model.named_parameters()["layer.weight"][0][0].item<float>(), 1);
  EXPECT_EQ(model.named_buffers()["norm.running_mean"][0].item<float>(), 1);
}

TEST_F(Together, InitialWeightsAreDrawnLikeThePlainProgramOfTheChief) {
  const auto numbers_after = [](int seed) {
    torch::manual_seed(seed);
    return torch::rand({3});
  };
  const torch::Tensor of_nine = numbers_after(9);
  torch::manual_seed(5);
  const Net plain;
  const torch::Tensor after_plain = torch::rand({3});
  for (const bool is_seeded_otherwise : {false, rank == workers - 1}) {
    torch::manual_seed(is_seeded_otherwise ? 9 : 5);
    if (rank == 0) strategy.run([] {});  // only the chief notices its seed
    auto model = strategy.make<Net>();
    EXPECT_TRUE(model->layer->weight.equal(plain.layer->weight.to(model->layer->weight.device())));
    EXPECT_TRUE(torch::rand({3}).equal(is_seeded_otherwise ? of_nine : after_plain));
  }
}

TEST_F(Together, BuffersAreAveragedOverAllWorkers) {
  auto model = strategy.make<Net>();
  strategy.run([&] {
    const int id = ls::get_replica_context().replica_id_in_sync_group();
    model->norm->running_mean.fill_(id);
    model->norm->num_batches_tracked.fill_(id + 5);
  });
  const auto buffers = model.named_buffers();
  EXPECT_EQ(buffers["norm.running_mean"][0].item<float>(), static_cast<float>(strategy.num_replicas_in_sync() - 1) / 2);
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int>(), 5);
}

TEST_F(Together, SparseBuffersAreTheSameEverywhereOrRefused) {
  const auto build = [](float weight) {
    auto net = std::make_shared<Net>();
    net->register_buffer("edges", (torch::eye(3) * weight).to_sparse());
    return net;
  };
  auto model = strategy.make([&] { return build(2); });
  model.synchronize_buffers();
  EXPECT_TRUE(model.named_buffers()["edges"].to_dense().equal(torch::eye(3) * 2));
  try {
    strategy.make([&] { return build(static_cast<float>(rank + 1)); });
    ADD_FAILURE() << "workers made different ones";
  } catch (const ls::Error& error) {
    EXPECT_NE(std::string(error.what()).find("edges"), std::string::npos) << error.what();
  }
}

TEST_F(Together, LossesAreAveragedOverTheRowsOfAllWorkers) {
  const auto shares = strategy.run([] {
    const int rows = ls::get_replica_context().replica_id_in_sync_group();  // the first has none
    return ls::average_loss(torch::ones({rows}));
  });
  EXPECT_NEAR(strategy.reduce(ls::ReduceOp::Sum, shares).item<double>(), 1, 1e-6);
}

TEST_F(Together, BatchesTellTheRowsOfAllWorkers) {
  const int n = strategy.num_replicas_in_sync();
  for (const auto assignment : {ls::Assignment::ByReplica, ls::Assignment::TensorFlow}) {
    for (const int rows : {6 * n - 1, 2 * n + 1}) {  // the last batch has too few rows for some replicas, or not
      int steps = 0;
      for (const auto& batch : strategy.distribute(ls::data::from_tensor_slices(torch::rand({rows})).batch(2 * n),
                                                   {.assignment = assignment})) {
        int empty = 0, here = 0;
        for (const auto& mine : batch) {
          here += static_cast<int>(mine.size(0));
          empty += mine.size(0) == 0 ? 1 : 0;
        }
        const auto all = ls::global_rows(batch);
        EXPECT_EQ(all, strategy.reduce(ls::ReduceOp::Sum, here));
        const bool some_are_empty = strategy.reduce(ls::ReduceOp::Sum, empty) > 0;
        const int before = Noted::count("average_loss");
        const auto are_equal = strategy.run(
            [&](const torch::Tensor& mine) {
              return torch::equal(ls::average_loss(mine.exp()), ls::average_loss(mine.exp(), all));
            },
            batch);
        for (const bool each : are_equal) EXPECT_TRUE(each);
        EXPECT_EQ(Noted::count("average_loss") - before, some_are_empty ? 1 : 0) << rows << " rows, step " << steps;
        // Batches cut by the program are counted again.
        const auto halves =
            batch.map([](const torch::Tensor& mine) { return mine.slice(0, 0, (mine.size(0) + 1) / 2); });
        const auto shares =
            strategy.run([&](const torch::Tensor& mine) { return ls::average_loss(torch::ones_like(mine)); }, halves);
        EXPECT_NEAR(strategy.reduce(ls::ReduceOp::Sum, shares).item<double>(), 1, 1e-6);
        ++steps;
      }
      EXPECT_GE(steps, 2);
    }
  }
}

/// Batches that only their worker has: worker k has k + 1 steps.
ls::DistributedDataset<torch::Tensor> uneven_batches(ls::Strategy& strategy, int fails_at = -1) {
  return strategy.distribute_from_function([&, fails_at](const ls::InputContext& input) {
    const bool fails = input.input_pipeline_id + 1 == input.num_input_pipelines;
    return ls::data::from_tensor_slices(torch::arange(3 + 4 * input.input_pipeline_id))
        .map([fails, fails_at](const torch::Tensor& x) {
          if (fails && x.item<int>() == fails_at) throw std::runtime_error("a bad row");
          return x;
        })
        .batch(2);
  });
}

TEST_F(Together, WorkersAgreeOnTheNextStepWhileTheyComputeThisOne) {
  const auto batches = uneven_batches(strategy);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const int before = Noted::count("distributed dataset");
    int steps = 0, rows = 0;
    for (const auto& batch : batches) {
      ++steps;
      // For this step and the next one: until then there is no meeting in which a worker could wait.
      EXPECT_EQ(Noted::count("distributed dataset") - before, steps + 1);
      rows += static_cast<int>(ls::global_rows(batch));
    }
    EXPECT_EQ(steps, workers);
    EXPECT_EQ(rows, 3 * workers + 2 * workers * (workers - 1));
    EXPECT_EQ(Noted::count("distributed dataset") - before, workers + 1);
  }
}

TEST_F(Together, ALoopMayEndBeforeTheData) {
  const auto batches = uneven_batches(strategy);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& batch : batches) {
      EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, strategy.run([](const torch::Tensor&) { return 1; }, batch)),
                2 * workers);
      break;
    }
    strategy.barrier();
    auto one = batches.iterator();
    auto other = batches.iterator();
    EXPECT_TRUE(one.next());
    EXPECT_TRUE(other.next());
    EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, 1), workers);
    EXPECT_TRUE(other.next());
  }
}

TEST_F(Together, WorkersHearOfAStepThatOneOfThemCannotRead) {
  const int last = workers - 1;
  auto steps = uneven_batches(strategy, 4).iterator();  // in the second step of the last worker
  EXPECT_TRUE(steps.next());
  for (int again = 0; again < 2; ++again) {
    try {
      steps.next();
      ADD_FAILURE() << "there is no such step";
    } catch (const std::exception& error) {
      const std::string expected =
          rank == last ? "a bad row" : "worker " + std::to_string(last) + " could not read the next step";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  strategy.barrier();  // the job continues
  auto unasked = uneven_batches(strategy, 4).iterator();
  EXPECT_TRUE(unasked.next());  // the step that fails is never requested
  EXPECT_EQ(strategy.reduce(ls::ReduceOp::Sum, 1), workers);
}

TEST_F(Together, WorkersHoldTheSameWeightsAfterTraining) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  optimizer.set_digest({.every = 1});
  train(model, optimizer, 5);
  const auto digest = torch::tensor(static_cast<std::int64_t>(ls::combine(optimizer.digests())));
  EXPECT_TRUE(torch::equal(strategy.broadcast(digest), digest));
}

TEST_F(Together, SizesOfLossesThatDifferBetweenWorkersAreWarnedOfOnce) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  const auto batch = strategy.split(torch::ones({6, 4}));
  const auto step = [&](int size) {
    strategy.run([&](const torch::Tensor& x) { optimizer.minimize(ls::average_loss(model->forward(x).sum(1), size)); },
                 batch);
  };
  const ls::LoggedLines logged;
  step(50);
  EXPECT_EQ(logged.count("was given the size"), 0);
  for (int steps = 0; steps < 2; ++steps) step(50 + rank);
  EXPECT_EQ(logged.count("was given the size 50 on worker 0 and 51 on worker 1"), workers > 1 ? 1 : 0);
}

TEST_F(Together, WorkersAgreeOnCallsOfAWindowThatAreDropped) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  optimizer.set_accumulate(2);
  std::vector<bool> has_updated;
  for (int call = 0; call < 5; ++call) {
    const auto updates = strategy.run([&] {
      // Only the chief's replicas can see that their gradients are gone: the others had only zeros.
      const bool is_updated =
          optimizer.minimize(ls::average_loss(model->forward(torch::rand({3, 4})).sum(1) * (rank == 0 ? 1 : 0), 12));
      if (call == 0) model->zero_grad();
      return is_updated;
    });
    has_updated.push_back(updates[0]);
  }
  EXPECT_EQ(has_updated, (std::vector{false, false, true, false, true}));
}

TEST_F(Together, UnusedParametersCountAsZero) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  const auto before = model.named_parameters()["layer.weight"].clone();
  for (int s = 0; s < 3; ++s) {  // only the last replica of all uses the layer, and not in the first step
    strategy.run([&] {
      const bool uses =
          s > 0 && ls::get_replica_context().replica_id_in_sync_group() + 1 == strategy.num_replicas_in_sync();
      const auto x = torch::ones({1, 4});
      const auto seen = model->norm->weight.sum() + (uses ? model->layer->weight.sum() : torch::zeros({}));
      optimizer.minimize(seen + 0 * x.sum());
    });
  }
  EXPECT_TRUE(torch::allclose(model.named_parameters()["layer.weight"], before - 0.2));
}

TEST_F(Together, GivenGradientsOfAllReplicasCountOnce) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(1.0));
  const auto before = model.named_parameters()["layer.bias"].clone();
  strategy.run([&] {
    torch::OrderedDict<std::string, torch::Tensor> given;
    given.insert("layer.bias", torch::ones({2}));
    optimizer.apply_gradients(given, ls::GradientsOf::AllReplicas);
  });
  EXPECT_TRUE(torch::allclose(model.named_parameters()["layer.bias"], before - 1));
}

TEST_F(Together, TheChiefSavesAndAllLoad) {
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
  train(model, optimizer, 3);
  // Another folder on every worker: only the chief's is written to, and read.
  const auto mine = file + std::to_string(rank);
  std::filesystem::remove(mine);
  ls::save(mine, model, optimizer);
  EXPECT_EQ(std::filesystem::exists(mine), rank == 0);
  const auto saved = ls::combine(optimizer.digests());
  train(model, optimizer, 2);
  EXPECT_NE(ls::combine(optimizer.digests()), saved);
  ls::load(mine, model, optimizer);
  EXPECT_EQ(ls::combine(optimizer.digests()), saved);
  EXPECT_EQ(optimizer.steps(), 3);
  train(model, optimizer, 1);
  ls::save(mine + ".own", model, {.this_worker_only = true});
  EXPECT_TRUE(std::filesystem::exists(mine + ".own"));
  std::filesystem::remove(mine);
  std::filesystem::remove(mine + ".own");
}

TEST_F(Together, BuffersWhoseElementsShareMemoryAreTheSameEverywhereOrRefused) {
  const auto build = [](double value) {
    auto net = std::make_shared<Net>();
    net->register_buffer("scale", torch::full({1}, value).expand({3}));
    return net;
  };
  auto model = strategy.make([&] { return build(2); });
  ls::save(file, model);
  ls::load(file, model);
  EXPECT_EQ(model.named_buffers()["scale"].sum().item<float>(), 6);
  EXPECT_THROW(strategy.make([&] { return build(rank); }), ls::Error);
}

TEST_F(Together, ParametersThatNoStepHasReachedAreLoadedToo) {
  struct Rows : nn::Module {
    Rows() { register_module("rows", rows), register_module("unused", unused); }
    nn::Embedding rows{nn::EmbeddingOptions(4, 2).sparse(true)};
    nn::Linear unused{4, 2};
  };
  for (const double momentum : {0.0, 0.9}) {
    for (const int steps : {0, 2}) {
      auto model = strategy.make<Rows>();
      auto optimizer =
          strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1).momentum(momentum));
      const auto train_rows = [&] {
        strategy.run([&] { optimizer.minimize(model->rows->forward(ls::here(torch::tensor({1, 3}))).square().sum()); });
      };
      for (int s = 0; s < steps; ++s) train_rows();
      ls::save(file, model, optimizer);
      const auto saved = ls::combine(optimizer.digests());
      train_rows();
      ls::load(file, model, optimizer);
      EXPECT_EQ(ls::combine(optimizer.digests()), saved) << momentum << ", " << steps << " steps";
      EXPECT_EQ(optimizer.steps(), steps);
      train_rows();
    }
  }
}

TEST_F(Together, AFailedLoadFailsEverywhere) {
  auto model = strategy.make<Net>();
  EXPECT_THROW(ls::load(file + ".missing", model), ls::Error);
  if (rank == 0) ls::save(file, {{"another", torch::ones({3})}});
  EXPECT_THROW(ls::load(file, model), ls::InvalidArgument);
  ls::save(file, model);
  EXPECT_THROW(ls::load(file, model, {.strict = rank == 0}), ls::Error);  // each worker loads for itself
  EXPECT_THROW(ls::save("/no/such/folder/file", model), ls::Error);
  strategy.barrier();  // the job continues
}

TEST_F(Together, StrategiesFollowEachOther) {
  for (int i = 0; i < 20; ++i) {
    ls::MultiWorkerMirroredStrategy another({.intra_op_threads = 1});
    EXPECT_EQ(another.reduce(ls::ReduceOp::Sum, another.run([] { return 1; })), workers);
  }
}

TEST_F(Together, APolicyWithoutEffectIsWarnedOfOnce) {
  const ls::LoggedLines logged;
  const auto off = ls::data::range(24).batch(12).with_options({.auto_shard_policy = ls::AutoShardPolicy::Off});
  for (int epoch = 0; epoch < 3; ++epoch) strategy.distribute(off);
  EXPECT_EQ(logged.count("AutoShardPolicy::Off has no effect"), 1);
}

}  // namespace
}  // namespace together
