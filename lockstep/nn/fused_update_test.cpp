#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/nn/fused_sgd.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

namespace lockstep {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

struct UpdateCase {
  const char* name;
  SGDOptions options;
  ReduceOp op = ReduceOp::Sum;
};

std::vector<UpdateCase> update_cases() {
  return {
      {"Plain", SGDOptions(0.1)},
      {"Decay", SGDOptions(0.07).weight_decay(0.3)},
      {"Momentum", SGDOptions(0.1).momentum(0.9)},
      {"Dampening", SGDOptions(0.1).momentum(0.8).dampening(0.3)},
      {"Nesterov", SGDOptions(0.03).momentum(0.9).nesterov(true)},
      {"All", SGDOptions(0.03).momentum(0.7).weight_decay(0.01).nesterov(true)},
      {"Mean", SGDOptions(0.1).momentum(0.9).weight_decay(0.1), ReduceOp::Mean},
  };
}

struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> momentum;
};

/// Some steps of `minimize`, which fuses, or of its parts, which sum first and then call LibTorch's optimizer.
Outcome train(const UpdateCase& c, int replicas, bool in_parts) {
  MirroredStrategy strategy({.devices = test_devices(replicas), .seed = 5});
  auto model = strategy.make([] {  // sizes that are not multiples of a vector, a block or a shard
    return torch::nn::Sequential(torch::nn::Linear(37, 131), torch::nn::Tanh(), torch::nn::Linear(131, 3));
  });
  auto optimizer = strategy.make_optimizer<SGD>(model, c.options);
  optimizer.set_reduce_op(c.op);
  for (int step = 0; step < 4; ++step) {
    strategy.run([&] {
      const auto loss = model->forward(at::randn({9, 37})).square().mean();
      if (in_parts) {
        optimizer.backward(loss);
        optimizer.reduce_gradients(c.op);
        optimizer.step();
      } else {
        optimizer.minimize(loss);
      }
    });
  }
  Outcome outcome;
  for (const auto& weight : model.parameters()) outcome.weights.push_back(weight.detach().clone());
  for (int r = 0; r < replicas; ++r) {
    const detail::ReplicaPart& part = *optimizer.core()->replicas[static_cast<std::size_t>(r)];
    for (const auto& segment : part.owned) {
      const auto state = part.inner->state().find(segment.weights.unsafeGetTensorImpl());
      if (state == part.inner->state().end()) continue;
      const auto& buffer = static_cast<torch::optim::SGDParamState&>(*state->second).momentum_buffer();
      if (buffer.defined()) outcome.momentum.push_back(buffer.clone());
    }
  }
  return outcome;
}

class FusedUpdate : public testing::TestWithParam<std::tuple<UpdateCase, int>> {};

TEST_P(FusedUpdate, HasTheBitsOfASumAndLibTorchsOptimizer) {
  ASSERT_TRUE(detail::has_fused_sgd()) << "this CPU has no fused multiply-add";
  const auto& [c, replicas] = GetParam();
  const auto fused = train(c, replicas, false);
  const auto in_parts = train(c, replicas, true);
  ASSERT_EQ(fused.weights.size(), in_parts.weights.size());
  for (std::size_t k = 0; k < fused.weights.size(); ++k)
    EXPECT_TRUE(at::equal(fused.weights[k], in_parts.weights[k])) << "parameter " << k;
  ASSERT_EQ(fused.momentum.size(), in_parts.momentum.size());
  for (std::size_t k = 0; k < fused.momentum.size(); ++k)
    EXPECT_TRUE(at::equal(fused.momentum[k], in_parts.momentum[k])) << "momentum " << k;
  EXPECT_EQ(!fused.momentum.empty(), c.options.momentum() != 0);
}

INSTANTIATE_TEST_SUITE_P(OptionsAndReplicas, FusedUpdate,
                         testing::Combine(testing::ValuesIn(update_cases()), testing::Values(1, 2, 3, 4)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "Over" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(Minimize, ForgetsWhatAFailedRunLeftBehind) {
  const auto weights_after = [](bool with_failure) {
    MirroredStrategy strategy({.devices = test_devices(2), .seed = 5});
    auto model = strategy.make<torch::nn::Linear>(3, 1);
    auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
    optimizer.set_accumulate(2);
    const auto step = [&](bool fail) {
      strategy.run(
          [&](int replica) {
            if (fail && replica == 1) throw std::runtime_error("one replica fails");
            optimizer.minimize(model->forward(at::ones({2, 3})).sum());
          },
          strategy.values_from_function([](const ValueContext& context) { return context.replica_id_in_sync_group; }));
    };
    if (with_failure) {
      EXPECT_THROW(step(true), std::runtime_error);
    }
    for (int k = 0; k < 4; ++k) step(false);
    return model.parameters()[0].detach().clone();
  };
  EXPECT_TRUE(at::equal(weights_after(true), weights_after(false)));
}

}  // namespace
}  // namespace lockstep
