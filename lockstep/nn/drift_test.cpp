#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/tensor_digest.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// One replica's copy goes bad, and comparing digests names the replica and the tensor.
namespace lockstep {
namespace {

at::Tensor with_one_bit_flipped(const at::Tensor& tensor) {
  at::Tensor changed = tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  static_cast<unsigned char*>(changed.data_ptr())[changed.nbytes() - 1] ^= 1u;
  return changed.to(tensor.device());
}

template <class Call>
void expect_drift(const std::string& what, const std::string& where, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "went unnoticed: " << what;
  } catch (const DataLoss& e) {
    EXPECT_EQ(e.number(), errors::kDrift);
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(where), std::string::npos) << e.what();
  }
}

class Drift : public testing::Test {
 protected:
  Drift()
      : strategy({.devices = test_devices(3)}),
        model(strategy.make<SmallNet>(600)),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01))) {
    set_log_severity(Severity::Silent);
  }
  void step() {
    strategy.run([&] {
      torch::Tensor rows = torch::randn({4, 9});
      optimizer.minimize(model->forward(rows).square().mean());
    });
  }

  MirroredStrategy strategy;
  MirroredModule<SmallNet> model;
  MirroredOptimizer<torch::optim::Adam> optimizer;
};

TEST_F(Drift, OfNothingIsQuietAndOrdinaryBatchNormIsNoDrift) {
  optimizer.set_digest({.every = 1});
  for (int k = 0; k < 5; ++k) step();
  EXPECT_EQ(optimizer.steps(), 5);
}

TEST_F(Drift, OfWeightsNamesReplicaAndTensor) {
  optimizer.set_digest({.every = 1});
  step();
  strategy.run([&] {
    optimizer.backward(model->forward(torch::randn({4, 9})).square().mean());
    optimizer.reduce_gradients();
  });
  expect_drift("'first.weight' of replica 2 differs from replica 0's", "after step 2", [&] {
    strategy.run([&] {
      const at::NoGradGuard no_grad;
      at::Tensor& weight = model.replica(2)->first->weight;  // `model->` would notice it
      if (get_replica_context().replica_id_in_sync_group() == 2) weight.set_data(with_one_bit_flipped(weight));
      optimizer.step();
    });
    optimizer.steps();  // on a GPU a difference is raised at the next call
  });
}

TEST_F(Drift, OfBuffersIsFoundWhereTheyAreToBeEqual) {
  nn::convert_sync_batch_norm(model);
  optimizer.set_digest({.every = 2, .buffers = true});
  for (int k = 0; k < 4; ++k) step();
  model.replica(1)->norm->running_var.copy_(with_one_bit_flipped(model.replica(1)->norm->running_var));
  step();  // the fifth: not compared
  expect_drift("buffer 'norm.running_var' of replica 1 differs from replica 0's", "after step 6", [&] {
    step();
    optimizer.steps();
  });
}

TEST_F(Drift, OfOptimizerStateNamesReplicaAndParameter) {
  optimizer.set_digest({.every = 1});
  step();
  const detail::ReplicaPart& part = *optimizer.core()->replicas[1];
  ASSERT_FALSE(part.owned.empty());
  const auto parameter = static_cast<std::size_t>(part.owned[0].where.parameter);
  ASSERT_EQ(optimizer.core()->module->parameters()[parameter].name, "first.weight") << "not a parameter that is cut";
  auto& state = part.inner->state().at(part.owned[0].weights.unsafeGetTensorImpl());
  static_cast<torch::optim::AdamParamState&>(*state).step(7);
  expect_drift("optimizer state 'step' of 'first.weight' of replica", "after step 2", [&] { step(); });
}

/// A user's class with unknown state.
struct OwnAdam : torch::optim::Adam {
  using Adam::Adam;
};

TEST_F(Drift, WithAnUnknownOptimizerClassIsAboutWeights) {
  auto other = strategy.make<SmallNet>();
  auto own = strategy.make_optimizer<OwnAdam>(other, torch::optim::AdamOptions(0.01));
  own.set_digest({.every = 1});
  for (int k = 0; k < 2; ++k) strategy.run([&] { own.minimize(other->forward(torch::randn({4, 9})).square().mean()); });
  EXPECT_EQ(own.digests().size(), other.parameters().size());
  EXPECT_THROW(own.state(), Unimplemented);
}

TEST_F(Drift, DigestsOfATrainingDependOnAllOfItAndNotOnTheNumberOfReplicas) {
  const auto digests = [](int replicas, double last_bit) {
    torch::manual_seed(2);
    MirroredStrategy some({.devices = test_devices(replicas)});
    auto net = some.make([] { return torch::nn::Linear(90, 100); });
    auto adam = some.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
    some.run([&] {
      const double share =
          get_replica_context().replica_id_in_sync_group() == 0 ? 1.0 : 0.0;  // the same sum for any number of replicas
      adam.minimize(net->forward(torch::ones({2, 90})).sum().mul(share + last_bit));
    });
    return adam.digests();
  };
  const auto one = digests(1, 0.0);
  ASSERT_EQ(one.size(), 8u);  // two parameters, and step, exp_avg, exp_avg_sq of each
  EXPECT_EQ(one[0].name, "weight");
  EXPECT_EQ(one[1].name, "weight/exp_avg");
  for (const int replicas : {2, 3, 4})
    EXPECT_EQ(combine(digests(replicas, 0.0)), combine(one)) << replicas << " replicas";
  EXPECT_NE(combine(digests(1, 1e-6)), combine(one));
}

TEST_F(Drift, ADigestOnTheDeviceSeesEveryChangeToo) {
  const auto of = [](const at::Tensor& tensor) { return digest_on_device(tensor).item<std::int64_t>(); };
  const at::Tensor images = torch::randn({5, 7, 13, 11});
  EXPECT_EQ(of(images), of(images.contiguous(at::MemoryFormat::ChannelsLast)));
  EXPECT_NE(of(images), of(with_one_bit_flipped(images)));
  EXPECT_NE(of(torch::zeros({5000})), of(torch::zeros({5001})));
  EXPECT_NE(of(torch::arange(9)), of(torch::arange(9).flip(0)));
  EXPECT_NE(of(torch::ones({})), of(torch::zeros({})));
  for (const std::int64_t size : {0, 1, 3, 7, 8, 9}) {
    const at::Tensor bytes = torch::randint(0, 200, {size}, at::kByte);
    EXPECT_EQ(of(bytes), of(bytes.clone()));
    for (std::int64_t i = 0; i < size; ++i) {
      at::Tensor changed = bytes.clone();
      changed[i] += 1;
      EXPECT_NE(of(bytes), of(changed)) << i << " of " << size;
    }
  }
}

TEST_F(Drift, TheDigestOfATensorDoesNotDependOnItsMemoryFormat) {
  const at::Tensor images = torch::randn({5, 7, 13, 11});
  EXPECT_EQ(digest_of(images), digest_of(images.contiguous(at::MemoryFormat::ChannelsLast)));
  EXPECT_NE(digest_of(images), digest_of(with_one_bit_flipped(images)));
  EXPECT_NE(digest_of(torch::zeros({5000})), digest_of(torch::zeros({5001})));
}

}  // namespace
}  // namespace lockstep
