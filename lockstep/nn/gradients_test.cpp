#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"

// Gradients between backward and the update: accumulated, reduced, read, clipped.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

class Gradients : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, Gradients, testing::Values(1, 2, 3, 4));

TEST_P(Gradients, OfTheWholeBatchAreShownToEveryReplica) {
  torch::manual_seed(3);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(3000);  // large enough to be cut into shards
  auto ids = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)); });
  model.to(at::kDouble);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  auto of_ids = strategy.make_optimizer<torch::optim::SGD>(ids, SGDOptions(0.1));
  auto plain = module_here(std::make_shared<Net>(3000));
  plain->to(at::kDouble);
  copy_values(model.parameters(), plain->parameters());
  const Batch batch = random_batch(7, at::kDouble);
  loss_per_row(plain->forward(batch.rows), batch.labels).mean().backward();
  double norm = 0;
  const auto shown = strategy.run(
      [&](const Batch& mine) {
        optimizer.backward(average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 7));
        of_ids.backward(ids->forward(here(torch::tensor({4, 4, 1}))).sum());
        EXPECT_THROW(optimizer.gradients(), FailedPrecondition) << "before the reduction there are none to show";
        optimizer.reduce_gradients();
        of_ids.reduce_gradients();
        const auto rows = of_ids.gradients()["weight"].to_dense();
        EXPECT_EQ(rows[4][0].item<float>(), 2.0F * static_cast<float>(GetParam()));
        std::vector<at::Tensor> gradients;
        for (const auto& its : optimizer.gradients()) gradients.push_back(its.value());
        const double before = optimizer.clip_global_norm(0.01);
        if (get_replica_context().replica_id_in_sync_group() == 0) norm = before;
        for (const auto& its : optimizer.gradients()) gradients.push_back(its.value());
        // These are copies: neither the update nor the other replicas see the change.
        if (get_replica_context().replica_id_in_sync_group() == 0) gradients.back().zero_();
        optimizer.step();
        return gradients;
      },
      split(strategy, batch));
  std::vector<at::Tensor> expected;
  for (const auto& parameter : plain->named_parameters()) {
    if (parameter.key() != "unused") expected.push_back(parameter.value().grad());
  }
  std::vector<at::Tensor> clipped;
  for (const auto& gradient : expected) clipped.push_back(gradient.mul(0.01 / (norm + 1e-6)));
  for (std::size_t k = 0; k < model.size(); ++k) {
    std::vector<at::Tensor> whole = shown[k];
    ASSERT_EQ(whole.size(), 2 * expected.size()) << "a parameter without a gradient is left out";
    if (k == 0) {
      EXPECT_EQ(whole.back().abs().max().item<double>(), 0.0);
      whole.back() = clipped.back();
    }
    const std::vector<at::Tensor> after(whole.begin() + static_cast<std::ptrdiff_t>(expected.size()), whole.end());
    whole.resize(expected.size());
    EXPECT_LT(largest_relative_difference(whole, expected), 1e-10);
    EXPECT_LT(largest_relative_difference(after, clipped), 1e-10);
  }
  for (std::size_t i = 0, p = 0; p < plain->parameters().size(); ++p) {
    if (!plain->parameters()[p].grad().defined()) continue;
    const at::Tensor updated = plain->parameters()[p].detach() - 0.1 * clipped[i++];
    EXPECT_TRUE(model.parameters()[p].detach().allclose(updated, 1e-10, 1e-12)) << "parameter #" << p;
    EXPECT_FALSE(model.parameters()[p].grad().defined()) << "step() forgets gradients";
  }
}

TEST_P(Gradients, AccumulationEqualsOneLargeBatch) {
  torch::manual_seed(2);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto parts = strategy.make<Net>(16);
  auto whole = strategy.make<Net>(16);
  parts.to(at::kDouble);
  whole.to(at::kDouble);
  copy_values(whole.parameters(), parts.parameters());
  auto of_parts = strategy.make_optimizer<torch::optim::SGD>(parts, SGDOptions(0.1));
  auto of_whole = strategy.make_optimizer<torch::optim::SGD>(whole, SGDOptions(0.1));
  of_parts.set_accumulate(3);
  const Batch batch = random_batch(12, at::kDouble);
  mirrored_step(strategy, whole, of_whole, batch);
  std::vector<bool> updated;
  for (int call = 0; call < 3; ++call) {
    const auto results = strategy.run(
        [&](const Batch& mine) {
          return of_parts.minimize(average_loss(loss_per_row(parts->forward(mine.rows), mine.labels), 12));
        },
        split(strategy, piece_of(batch, call, 3)));
    updated.push_back(results[0]);
  }
  EXPECT_EQ(updated, (std::vector<bool>{false, false, true}));
  EXPECT_LT(largest_relative_difference(parts.parameters(), whole.parameters()), 1e-12);
}

TEST_P(Gradients, ClippingByGlobalNormActsAfterTheReduction) {
  torch::manual_seed(4);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(50);
  model.to(at::kDouble);
  auto plain = module_here(std::make_shared<Net>(50));
  plain->to(at::kDouble);
  copy_values(model.parameters(), plain->parameters());
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
  optimizer.set_clip_global_norm(0.01);
  torch::optim::SGD plain_optimizer(plain->parameters(), SGDOptions(1.0));
  const Batch batch = random_batch(10, at::kDouble);
  mirrored_step(strategy, model, optimizer, batch);
  loss_per_row(plain->forward(batch.rows), batch.labels).mean().backward();
  double squares = 0;
  for (const auto& parameter : plain->parameters()) {
    if (parameter.grad().defined()) squares += parameter.grad().square().sum().item<double>();
  }
  for (const auto& parameter : plain->parameters()) {
    if (parameter.grad().defined()) parameter.grad().mul_(0.01 / (std::sqrt(squares) + 1e-6));
  }
  plain_optimizer.step();
  EXPECT_LT(largest_relative_difference(model.parameters(), plain->parameters()), 1e-10);
}

TEST_P(Gradients, SparseGradientsFollowTheDenseOnes) {
  torch::manual_seed(6);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  const auto build = [](bool sparse) {
    return [sparse] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 3).sparse(sparse)); };
  };
  auto sparse = strategy.make(build(true));
  auto dense = strategy.make(build(false));
  copy_values(dense.parameters(), sparse.parameters());
  auto of_sparse = strategy.make_optimizer<torch::optim::SGD>(sparse, SGDOptions(0.5));
  auto of_dense = strategy.make_optimizer<torch::optim::SGD>(dense, SGDOptions(0.5));
  for (int step = 0; step < 4; ++step) {
    const auto ids =
        strategy.values_from_function([&](const ValueContext&) { return torch::randint(0, 50, {7}, at::kLong); });
    strategy.run(
        [&](const at::Tensor& mine) {
          of_sparse.minimize(sparse->forward(mine).square().sum());
          of_dense.minimize(dense->forward(mine).square().sum());
        },
        ids);
  }
  EXPECT_LT(largest_relative_difference(sparse.parameters(), dense.parameters()), 1e-5);
}

TEST_P(Gradients, AGradientThatIsNotFiniteIsNamedBeforeTheWeightsChange) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(8);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  const int culprit = GetParam() - 1;
  const auto step = [&] {
    strategy.run([&] {
      const double factor = get_replica_context().replica_id_in_sync_group() == culprit ? NAN : 1.0;
      optimizer.minimize(model->forward(torch::ones({2, 9})).sum().mul(factor));
    });
  };
  std::vector<at::Tensor> before;
  for (const auto& parameter : model.parameters()) before.push_back(parameter.detach().clone());
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  try {
    step();
    FAIL() << "a NaN went unnoticed";
  } catch (const FailedPrecondition& e) {
    EXPECT_EQ(e.number(), errors::kNotFinite);
    EXPECT_NE(std::string(e.what()).find("first.weight"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("from replica " + std::to_string(culprit)), std::string::npos) << e.what();
  }
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  step();
  EXPECT_EQ(optimizer.skipped_steps(), 1);
  EXPECT_EQ(first_difference(model.parameters(), before), "");
}

}  // namespace
}  // namespace lockstep
