#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// Where parameters are cut into shards must not affect any bit of updates or norms.
namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

/// Sizes around and across blocks, one large enough for LibTorch to use several threads on it.
struct Table : torch::nn::Module {
  explicit Table(at::ScalarType dtype) {
    for (const std::int64_t size : {1, 37, 4095, 4096, 4097, 3 * 4096 + 5, 70'001}) {
      register_parameter("of_" + std::to_string(size), torch::randn({size}, dtype));
    }
  }
};

/// Gradients of step number `step`: some large, some tiny, some zero.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    const at::Tensor noise = torch::randn(parameter.sizes(), at::kDouble);
    gradients.push_back(noise.pow(5).mul(noise.abs().gt(0.1)).to(parameter.scalar_type()).add(0.0));  // no -0
  }
  return gradients;
}

struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> state;
  std::vector<double> norms;
};

/// How to take a step: in parts, or by minimize, which may sum and update at once.
enum class Way { Parts, Minimize };

/// Four steps with given gradients; one replica has them all and the others have none or zeros, so every number of
/// replicas has the same reduced gradients.
template <class Opt, class Options>
Outcome train_mirrored(int replicas, at::ScalarType dtype, const Options& options, Way way,
                       std::optional<double> clip = {}) {
  torch::manual_seed(9);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make<Table>(dtype);
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    const auto gradients = gradients_of(model.parameters(), step);
    const int giver = step % replicas;
    const auto norms = strategy.run([&] {
      const bool gives = get_replica_context().replica_id_in_sync_group() == giver;
      auto leaves = model->parameters();
      if (way == Way::Minimize) {
        at::Tensor loss = torch::zeros({}, dtype);
        for (std::size_t i = 0; i < leaves.size(); ++i) {
          loss = loss + leaves[i].mul(gives ? gradients[i] : gradients[i].new_zeros(gradients[i].sizes())).sum();
        }
        optimizer.minimize(loss);
        return 0.0;
      }
      for (std::size_t i = 0; gives && i < leaves.size(); ++i) leaves[i].mutable_grad() = gradients[i].clone();
      optimizer.reduce_gradients();
      const double norm = clip ? optimizer.clip_global_norm(*clip) : 0.0;
      optimizer.step();
      return norm;
    });
    outcome.norms.push_back(norms[0]);
    for (int k = 1; k < replicas; ++k) EXPECT_EQ(norms[static_cast<std::size_t>(k)], norms[0]) << "replica " << k;
  }
  outcome.weights = copies_of(model.parameters());
  for (const auto& [parameter, state] : optimizer.state()) {
    for (const auto& [key, value] : state) outcome.state.push_back(value);
  }
  return outcome;
}

template <class Opt, class Options>
std::vector<at::Tensor> train_plain(at::ScalarType dtype, const Options& options) {
  torch::manual_seed(9);
  Table table(dtype);
  Opt optimizer(table.parameters(), options);
  for (int step = 0; step < 4; ++step) {
    const auto gradients = gradients_of(table.parameters(), step);
    auto leaves = table.parameters();
    for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = gradients[i].clone();
    optimizer.step();
  }
  return copies_of(table.parameters());
}

template <class Opt, class Options>
void expect_no_trace_of_cuts(const char* what, const Options& options) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(std::string(what) + " in " + c10::toString(dtype));
    const Outcome alone = train_mirrored<Opt>(1, dtype, options, Way::Parts);
    EXPECT_EQ(first_difference(alone.weights, train_plain<Opt>(dtype, options)), "") << "one replica against LibTorch";
    // LibTorch's own bits in 16 bits depend on how many threads share a tensor, and a single replica's are LibTorch's.
    const Outcome whole = dtype == at::kBFloat16 ? train_mirrored<Opt>(16, dtype, options, Way::Parts) : alone;
    const auto compare = [&](int replicas, Way way) {
      const Outcome cut = train_mirrored<Opt>(replicas, dtype, options, way);
      const std::string how =
          std::to_string(replicas) + (way == Way::Parts ? " replicas, in parts" : " replicas, by minimize");
      EXPECT_EQ(first_difference(cut.weights, whole.weights), "") << "weights, " << how;
      EXPECT_EQ(first_difference(cut.state, whole.state), "") << "state, " << how;
    };
    for (const int replicas : {2, 3, 4, 7}) compare(replicas, Way::Parts);
    for (const int replicas : {1, 3, 4}) {
      if (dtype == at::kFloat) compare(replicas, Way::Minimize);
    }
  }
}

class ShardCuts : public testing::Test {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};

TEST_F(ShardCuts, LeaveNoTraceInSgd) {
  expect_no_trace_of_cuts<torch::optim::SGD>("plain", SGDOptions(0.1));
  expect_no_trace_of_cuts<torch::optim::SGD>("momentum and decay",
                                             SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01));
  expect_no_trace_of_cuts<torch::optim::SGD>("nesterov",
                                             SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}

TEST_F(ShardCuts, LeaveNoTraceInAdam) {
  expect_no_trace_of_cuts<torch::optim::Adam>("plain", AdamOptions(0.01));
  expect_no_trace_of_cuts<torch::optim::Adam>("decay and amsgrad", AdamOptions(0.01).weight_decay(0.01).amsgrad(true));
}

TEST_F(ShardCuts, LeaveNoTraceInAdamW) {
  expect_no_trace_of_cuts<torch::optim::AdamW>("plain", AdamWOptions(0.01));
  expect_no_trace_of_cuts<torch::optim::AdamW>("amsgrad", AdamWOptions(0.01).weight_decay(0.1).amsgrad(true));
}

TEST_F(ShardCuts, LeaveNoTraceInRmsprop) {
  expect_no_trace_of_cuts<torch::optim::RMSprop>("plain", RMSpropOptions(0.01));
  expect_no_trace_of_cuts<torch::optim::RMSprop>("centered, momentum, decay",
                                                 RMSpropOptions(0.01).centered(true).momentum(0.9).weight_decay(0.01));
}

TEST_F(ShardCuts, LeaveNoTraceInAdagrad) {
  expect_no_trace_of_cuts<torch::optim::Adagrad>("plain", AdagradOptions(0.1));
  expect_no_trace_of_cuts<torch::optim::Adagrad>("decay", AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.01));
}

TEST_F(ShardCuts, LeaveNoTraceInGlobalNorms) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Outcome whole = train_mirrored<torch::optim::SGD>(1, dtype, SGDOptions(0.1), Way::Parts, 0.5);
    ASSERT_GT(whole.norms[0], 0.5) << "nothing is clipped: this test is blind";
    for (const int replicas : {2, 3, 4, 5, 6, 7, 8, 16}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + std::to_string(replicas) + " replicas");
      const Outcome cut = train_mirrored<torch::optim::SGD>(replicas, dtype, SGDOptions(0.1), Way::Parts, 0.5);
      EXPECT_EQ(cut.norms, whole.norms);
      EXPECT_EQ(first_difference(cut.weights, whole.weights), "");
    }
  }
}

}  // namespace
}  // namespace lockstep
