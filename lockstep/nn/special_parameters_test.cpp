#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// Parameters that are tied, frozen, sparse or used by some replicas only; and the ways to weigh losses and gradients.
namespace lockstep {
namespace {

/// Element-wise, but not declared so: Lockstep deals out whole parameters.
struct WholeSgd : torch::optim::SGD {
  using SGD::SGD;
};

struct RowMeansState : torch::optim::OptimizerCloneableParamState<RowMeansState> {
  at::Tensor means;  ///< one number per row, in double whatever the type of the weights
};

/// Has state of another shape and type than its parameters.
struct RowMeans : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure = nullptr) override {
    for (auto& group : param_groups()) {
      for (auto& p : group.params()) {
        if (!p.grad().defined()) continue;
        auto& slot = state()[p.unsafeGetTensorImpl()];
        if (!slot) slot = std::make_unique<RowMeansState>();
        auto& kept = static_cast<RowMeansState&>(*slot);
        const at::Tensor now = p.grad().to(at::kDouble).reshape({p.size(0), -1}).mean(1);
        kept.means = kept.means.defined() ? kept.means * 0.5 + now : now;
        p.sub_(p.grad() * 0.1);
      }
    }
    return {};
  }
};

}  // namespace

template <>
struct OptimizerStateTraits<RowMeans> {
  static ParameterState read(const torch::optim::OptimizerParamState& any) {
    return {{"means", static_cast<const RowMeansState&>(any).means}};
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> write(const ParameterState& values) {
    auto state = std::make_unique<RowMeansState>();
    state->means = values.at("means");
    return state;
  }
};

template <>
struct OptimizerStateTraits<WholeSgd> : OptimizerStateTraits<torch::optim::SGD> {};

namespace {

using torch::optim::AdagradOptions;
using torch::optim::SGDOptions;

/// One matrix under two names, with a frozen layer in between.
struct TiedNet : torch::nn::Module {
  TiedNet() : in(9, 9), frozen(9, 9) {
    register_module("in", in);
    register_module("frozen", frozen);
    tied = register_parameter("tied", in->weight);
    bias = register_parameter("bias", torch::zeros({9}));
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(frozen(in(x).tanh()).tanh(), tied, bias); }

  torch::nn::Linear in, frozen;
  at::Tensor tied, bias;
};

class SpecialParameters : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, SpecialParameters, testing::Values(1, 2, 3, 4));

TEST_P(SpecialParameters, AClassOfItsOwnKindGetsBackTheStateItHad) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<torch::nn::Linear>(3, 4);
  const auto make = [&] { return strategy.make_optimizer<RowMeans>(model, SGDOptions(0.1)); };
  const auto step = [&](auto& optimizer) {
    strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 3})).square().sum()); });
  };
  auto first = make();
  step(first);
  const OptimizerState saved = first.state();
  ASSERT_EQ(saved.at("weight").at("means").sizes(), (std::vector<std::int64_t>{4}));
  auto second = make();
  second.load_state(saved);
  const OptimizerState loaded = second.state();
  for (const char* name : {"weight", "bias"}) {
    EXPECT_EQ(loaded.at(name).at("means").scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(loaded.at(name).at("means"), saved.at(name).at("means"))) << name;
  }
  step(second);
}

TEST_P(SpecialParameters, TiedAndFrozenOnesFollowThePlainLoop) {
  torch::manual_seed(5);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<TiedNet>();
  auto plain = module_here(std::make_shared<TiedNet>());
  model.to(at::kDouble);
  plain->to(at::kDouble);
  for (std::size_t k = 0; k < model.size(); ++k) {
    EXPECT_TRUE(model.replica(k)->in->weight.is_same(model.replica(k)->tied)) << "replica " << k;
  }
  copy_values(model.parameters(), plain->parameters());
  const at::Tensor frozen = model->frozen->weight.clone();
  const auto options = torch::optim::AdamOptions(0.01).weight_decay(0.1);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, options);
  torch::optim::Adam plain_optimizer({plain->in->weight, plain->in->bias, plain->bias}, options);
  for (int step = 0; step < 20; ++step) {
    const Batch batch = random_batch(7, at::kDouble);
    plain_optimizer.zero_grad();
    plain->forward(batch.rows).square().sum(1).mean().backward();
    plain_optimizer.step();
    strategy.run(
        [&](const Batch& mine) { optimizer.minimize(average_loss(model->forward(mine.rows).square().sum(1), 7)); },
        share_out(strategy, batch));
  }
  EXPECT_TRUE(model->in->weight.allclose(plain->in->weight, 1e-10, 1e-12));
  EXPECT_TRUE(model->bias.allclose(plain->bias, 1e-10, 1e-12));
  EXPECT_TRUE(model->frozen->weight.equal(frozen)) << "decay reached a frozen parameter";
  for (std::size_t k = 0; k < model.size(); ++k) {
    EXPECT_EQ(model.replica(k)->tied.data_ptr(), model->in->weight.data_ptr());
  }
}

TEST_P(SpecialParameters, TiedOnesBelongToGroupsByAnyOfTheirNames) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<TiedNet>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, {{{"in.weight", "bias"}, SGDOptions(1.0)}});
  const auto before = copies_of({model->tied, model->bias, model->in->bias});
  strategy.run([&] { optimizer.minimize((model->tied.sum() + model->bias.sum()) / GetParam()); });
  EXPECT_TRUE(at::allclose(model->tied, before[0] - 1));
  EXPECT_TRUE(at::allclose(model->bias, before[1] - 1));
  EXPECT_TRUE(model->in->bias.equal(before[2]));
}

TEST_P(SpecialParameters, OneWithoutGradientOnSomeReplicasCountsAsZeroThere) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<SmallNet>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
  const int user = GetParam() - 1;
  strategy.run([&] {
    const bool uses_it = get_replica_context().replica_id_in_sync_group() == user;
    const at::Tensor loss = model->second->bias.sum();
    optimizer.minimize(uses_it ? loss + model->unused.sum().mul(0.25) : loss);
  });
  EXPECT_TRUE(model->unused.equal(torch::full({5}, 0.75)));
}

/// The same ids for all numbers of replicas, divided among them.
template <class Opt, class Options>
std::vector<at::Tensor> train_embedding(int replicas, bool sparse, const Options& options, bool save_and_load) {
  torch::manual_seed(6);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  const auto build = [&] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(900, 6).sparse(sparse)); };
  auto table = strategy.make(build);
  auto optimizer = strategy.make_optimizer<Opt>(table, options);
  for (int step = 0; step < 6; ++step) {
    if (save_and_load && step == 3) {
      const OptimizerState saved = optimizer.state();
      optimizer = strategy.make_optimizer<Opt>(table, options);
      optimizer.load_state(saved);
    }
    const at::Tensor ids = torch::randint(0, 40, {24}, at::kLong).mul(20);
    strategy.run([&] {
      auto& replica = get_replica_context();
      const at::Tensor mine = ids.tensor_split(
          replica.num_replicas_in_sync())[static_cast<std::size_t>(replica.replica_id_in_sync_group())];
      optimizer.minimize(table->forward(mine).square().sum());
    });
  }
  return copies_of(table.parameters());
}

TEST_P(SpecialParameters, SparseGradientsFollowDenseOnesWithEveryOptimizerThatTakesThem) {
  const auto compare = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const char* what) {
    EXPECT_TRUE(a[0].allclose(b[0], 1e-4, 1e-6)) << what << ": " << a[0].sub(b[0]).abs().max().item<double>();
  };
  const auto sgd = train_embedding<torch::optim::SGD>(1, false, SGDOptions(0.1), false);
  compare(train_embedding<torch::optim::SGD>(GetParam(), true, SGDOptions(0.1), false), sgd, "SGD");
  const auto adagrad = train_embedding<torch::optim::Adagrad>(1, false, AdagradOptions(0.1), false);
  compare(train_embedding<torch::optim::Adagrad>(GetParam(), true, AdagradOptions(0.1), false), adagrad, "Adagrad");
  compare(train_embedding<torch::optim::Adagrad>(GetParam(), true, AdagradOptions(0.1), true), adagrad,
          "Adagrad, saved and loaded");
}

/// A table with momentum that can continue training from another's state.
template <class Opt>
struct SparseTable {
  SparseTable(int replicas, const SGDOptions& options, bool sparse = true)
      : strategy({.devices = test_devices(replicas), .seed = 6}),
        table(strategy.make([&] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(900, 6).sparse(sparse)); })),
        optimizer(strategy.make_optimizer<Opt>(table, options)) {}

  void steps(int first, int end) {
    for (int step = first; step < end; ++step) {
      const at::Tensor ids = torch::arange(step, step + 24).mul(37).remainder(40).mul(20);
      strategy.run([&] {
        auto& replica = get_replica_context();
        const auto me = static_cast<std::size_t>(replica.replica_id_in_sync_group());
        optimizer.minimize(table->forward(ids.tensor_split(replica.num_replicas_in_sync())[me]).square().sum());
      });
    }
  }

  MirroredStrategy strategy;
  MirroredModule<torch::nn::EmbeddingImpl> table;
  MirroredOptimizer<Opt> optimizer;
};

TEST_P(SpecialParameters, MomentumOfSparseGradientsIsSavedLoadedAndDigested) {
  const auto check = [&]<class Opt>(std::type_identity<Opt>, const SGDOptions& options) {
    SparseTable<Opt> whole(GetParam(), options);
    whole.steps(0, 3);
    const OptimizerState saved = whole.optimizer.state();
    const at::Tensor buffer = saved.at("weight").at("momentum_buffer");
    EXPECT_TRUE(buffer.is_sparse());
    EXPECT_EQ(buffer.sizes(), whole.table->weight.sizes());
    const at::Tensor values = buffer.to_dense();
    const std::vector<at::Tensor> weights = copies_of(whole.table.parameters());
    const auto digests = whole.optimizer.digests();
    whole.steps(3, 6);
    EXPECT_TRUE(buffer.to_dense().equal(values)) << "a saved state changed with the optimizer";
    for (const int replicas : {1, 3, GetParam()}) {
      SparseTable<Opt> resumed(replicas, options);
      copy_values(weights, resumed.table.parameters());
      resumed.optimizer.load_state(saved);
      EXPECT_TRUE(resumed.optimizer.state().at("weight").at("momentum_buffer").to_dense().equal(values));
      EXPECT_EQ(combine(resumed.optimizer.digests()), combine(digests)) << replicas;
      resumed.steps(3, 6);
      EXPECT_TRUE(resumed.table->weight.allclose(whole.table->weight, 1e-5, 1e-7)) << replicas;
    }
    EXPECT_NE(combine(whole.optimizer.digests()), combine(digests));
    SparseTable<Opt> dense(GetParam(), options, /*sparse=*/false);
    dense.steps(0, 6);
    EXPECT_TRUE(dense.table->weight.allclose(whole.table->weight, 1e-4, 1e-6));
  };
  check(std::type_identity<torch::optim::SGD>(), SGDOptions(0.1).momentum(0.9));
  check(std::type_identity<torch::optim::SGD>(), SGDOptions(0.1).momentum(0.9).nesterov(true));
  check(std::type_identity<WholeSgd>(), SGDOptions(0.1).momentum(0.9));
}

TEST_P(SpecialParameters, MomentumOfSparseGradientsGoesOnWithDenseOnes) {
  const auto check = [&]<class Opt>(std::type_identity<Opt>) {
    const auto options = SGDOptions(0.1).momentum(0.9);
    SparseTable<Opt> sparse(GetParam(), options);
    sparse.steps(0, 3);
    for (const bool in_parts : {false, true}) {
      SparseTable<Opt> dense(GetParam(), options, /*sparse=*/false);
      if (in_parts) dense.optimizer.set_clip_global_norm(1e6);
      copy_values(sparse.table.parameters(), dense.table.parameters());
      dense.optimizer.load_state(sparse.optimizer.state());
      dense.steps(3, 6);
      SparseTable<Opt> always_dense(GetParam(), options, /*sparse=*/false);
      always_dense.steps(0, 6);
      EXPECT_TRUE(dense.table->weight.allclose(always_dense.table->weight, 1e-4, 1e-6)) << in_parts;
      EXPECT_FALSE(dense.optimizer.state().at("weight").at("momentum_buffer").is_sparse());
    }
    // And within one optimizer whose gradients change.
    sparse.strategy.run([&] { sparse.optimizer.minimize(sparse.table->weight.square().sum()); });
    EXPECT_EQ(sparse.optimizer.steps(), 4);
  };
  check(std::type_identity<torch::optim::SGD>());
  check(std::type_identity<WholeSgd>());
}

TEST_P(SpecialParameters, AGradientThatBecomesSparseTakesTheStateWithIt) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto table = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(2000, 6)); });
  auto optimizer = strategy.make_optimizer<torch::optim::Adagrad>(table, AdagradOptions(0.1));
  const at::Tensor ids = torch::arange(5);
  const auto step = [&] { strategy.run([&] { optimizer.minimize(table->forward(ids).sum()); }); };
  step();
  const at::Tensor before = optimizer.state().at("weight").at("sum").clone();
  for (std::size_t k = 0; k < table.size(); ++k) table.replica(k)->options.sparse(true);
  step();
  const auto state = optimizer.state().at("weight");
  EXPECT_TRUE(state.at("sum").allclose(before.mul(2)));
  EXPECT_EQ(state.at("step").item<int>(), 2);
}

TEST_P(SpecialParameters, LossesAndGradientsAreWeighedAsAsked) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  const auto bias_after = [&](const std::function<at::Tensor(const at::Tensor&)>& loss, const auto& settings) {
    auto model = strategy.make([] { return torch::nn::Linear(1, 1); });
    copy_values({torch::zeros({1, 1}), torch::zeros({1})}, model.parameters());
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
    settings(optimizer);
    strategy.run([&] { optimizer.minimize(loss(model->bias)); });
    return at::Tensor(model->bias).template item<double>();
  };
  const auto nothing = [](auto&) {};
  const auto itself = [](const at::Tensor& bias) { return bias.sum(); };
  const double replicas = GetParam();
  EXPECT_DOUBLE_EQ(bias_after(itself, nothing), -replicas) << "summed";
  EXPECT_FLOAT_EQ(
      static_cast<float>(bias_after(itself, [](auto& optimizer) { optimizer.set_reduce_op(ReduceOp::Mean); })), -1.0f);
  EXPECT_FLOAT_EQ(
      static_cast<float>(bias_after([](const at::Tensor& bias) { return scale_regularization_loss(bias); }, nothing)),
      -1.0f);
  EXPECT_FLOAT_EQ(
      static_cast<float>(bias_after([](const at::Tensor& bias) { return average_loss(bias.expand({4})); }, nothing)),
      -1.0f);
  EXPECT_DOUBLE_EQ(bias_after(itself, [](auto& optimizer) { optimizer.set_clip_value(0.5); }), -0.5)
      << "clipped after the sum";
  {
    const auto scope = strategy.scope();
    EXPECT_THROW(average_loss(torch::ones({2})), FailedPrecondition)
        << "outside of replicas there is no share of a loss";
  }
  EXPECT_THROW(strategy.run([] { average_loss(torch::ones({2}), 0); }), InvalidArgument);
  EXPECT_THROW(strategy.run([] { average_loss(torch::ones({2}, at::kBool)); }), InvalidArgument);
}

/// Autograd gives both gradients the same memory.
struct AliasedGradients : torch::nn::Module {
  AliasedGradients() {
    a = register_parameter("a", torch::zeros({4, 4}, at::kDouble));
    b = register_parameter("b", torch::zeros({4, 4}, at::kDouble));
  }
  at::Tensor forward() { return (a.view({16}) + b.view({16})).sum(); }
  at::Tensor a, b;
};

TEST_P(SpecialParameters, GradientsThatShareMemoryAreAddedUpOnce) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<AliasedGradients>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
  strategy.run([&] { optimizer.minimize(model->forward()); });
  const double expected = -GetParam();
  EXPECT_TRUE(model->a.equal(torch::full({4, 4}, expected, at::kDouble))) << model->a;
  EXPECT_TRUE(model->b.equal(torch::full({4, 4}, expected, at::kDouble))) << model->b;
}

TEST_P(SpecialParameters, OneReplicaUpdatesRepeatedSparseRowsAsLibTorchDoes) {
  MirroredStrategy strategy({.devices = test_devices(1), .seed = 3});
  auto table = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)); });
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(table, SGDOptions(0.1));
  at::Tensor plain = table->weight.detach().clone().requires_grad_();
  torch::optim::SGD plain_optimizer({plain}, SGDOptions(0.1));
  for (int step = 0; step < 30; ++step) {
    optimizer.set_non_finite_policy(step < 10 ? NonFinitePolicy::Ignore : NonFinitePolicy::Raise);
    const at::Tensor ids = here(torch::tensor({1, 4, 1, 1, step % 10, 4}));
    const at::Tensor slopes = torch::linspace(0.1, 1.7, 18).view({6, 3});
    strategy.run([&] {
      const at::Tensor loss = (table->forward(ids) * slopes).sin().sum();
      if (step < 20) {
        optimizer.minimize(loss);
        return;
      }
      optimizer.backward(loss);
      optimizer.reduce_gradients();
      optimizer.step();
    });
    plain_optimizer.zero_grad();
    (at::embedding(plain, ids, -1, false, /*sparse=*/true) * slopes).sin().sum().backward();
    plain_optimizer.step();
    ASSERT_TRUE(plain.equal(table->weight)) << "step " << step;
  }
}

TEST_P(SpecialParameters, BuffersBeginAsThoseOfReplicaZero) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  int calls = 0;
  const auto build = [&](bool odd) {
    return [&calls, odd] {
      auto module = std::make_shared<torch::nn::Module>("Counted");
      module->register_buffer("number", torch::full({odd && calls > 0 ? 3 : 2}, static_cast<double>(calls)));
      ++calls;
      return module;
    };
  };
  auto model = strategy.make(build(false));
  for (std::size_t k = 0; k < model.size(); ++k) EXPECT_EQ(model.replica(k)->buffers()[0].sum().item<double>(), 0.0);
  calls = 0;
  if (GetParam() > 1) {
    EXPECT_THROW(strategy.make(build(true)), InvalidArgument);
  }
}

TEST_P(SpecialParameters, ConstantBuffersStayWhatTheyAre) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  const auto build = [] {
    auto net = torch::nn::Linear(2, 2);
    net->register_buffer("mask", torch::full({3}, std::numeric_limits<float>::lowest()));
    net->register_buffer("places", torch::linspace(0, 1, 1000));
    return net;
  };
  auto model = strategy.make(build);
  model.synchronize_buffers();
  for (std::size_t k = 0; k < model.size(); ++k) {
    EXPECT_TRUE(
        model.replica(k)->named_buffers()["mask"].equal(torch::full({3}, std::numeric_limits<float>::lowest())));
    EXPECT_TRUE(model.replica(k)->named_buffers()["places"].equal(torch::linspace(0, 1, 1000)));
  }
}

TEST_P(SpecialParameters, TheMeanOfHalfPrecisionBuffersHoldsWhatTheirSumDoesNot) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make([] {
    auto net = torch::nn::Linear(2, 2);
    net->register_buffer("variance", torch::ones({3}, at::kHalf));
    return net;
  });
  strategy.run([&] {
    model->named_buffers()["variance"].fill_(get_replica_context().replica_id_in_sync_group() == 0 ? 40032 : 40000);
  });
  const at::Tensor mean = model.named_buffers()["variance"];
  EXPECT_EQ(mean.scalar_type(), at::kHalf);
  EXPECT_NEAR(mean[0].item<double>(), 40016, 32);
}

TEST_P(SpecialParameters, AnInfiniteSparseGradientIsBlamedOnItsReplica) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto table = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 6).sparse(true)); });
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(table, SGDOptions(0.1));
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  for (int culprit = 0; culprit < GetParam(); ++culprit) {
    try {
      strategy.run([&] {
        const double factor = get_replica_context().replica_id_in_sync_group() == culprit ? INFINITY : 1.0;
        optimizer.minimize(table->forward(torch::arange(5)).sum().mul(factor));
      });
      FAIL() << "an infinity went unnoticed";
    } catch (const FailedPrecondition& e) {
      EXPECT_EQ(e.number(), errors::kNotFinite);
      EXPECT_NE(std::string(e.what()).find("from replica " + std::to_string(culprit)), std::string::npos) << e.what();
    }
  }
}

TEST_P(SpecialParameters, StateDoesNotDependOnLayoutOrOnHowParametersAreDealtOut) {
  const auto train = [&]<class Opt>(std::type_identity<Opt>, bool channels_last, int replicas) {
    MirroredStrategy strategy({.devices = test_devices(replicas), .seed = 5, .fast_kernels = false});
    auto model = strategy.make([] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)); },
                               {.channels_last = channels_last});
    auto optimizer = strategy.make_optimizer<Opt>(model, SGDOptions(0.1).momentum(0.9));
    const auto step = [&] {
      strategy.run([&] {
        const at::Tensor x = torch::arange(0, 75, torch::kFloat).div(50).view({1, 3, 5, 5});
        optimizer.minimize(model->forward(x).square().sum().div(replicas));
      });
    };
    step();
    const OptimizerState saved = optimizer.state();
    optimizer = strategy.make_optimizer<Opt>(model, SGDOptions(0.1).momentum(0.9));
    optimizer.load_state(saved);
    step();
    return std::pair(saved.at("weight").at("momentum_buffer"), model.parameters()[0].detach().clone());
  };
  const auto [state, weight] = train(std::type_identity<torch::optim::SGD>(), false, 1);
  for (const bool channels_last : {false, true}) {
    const auto [cut, cut_weight] = train(std::type_identity<torch::optim::SGD>(), channels_last, GetParam());
    const auto [whole, whole_weight] = train(std::type_identity<WholeSgd>(), channels_last, GetParam());
    EXPECT_TRUE(cut.allclose(state, 1e-4, 1e-5)) << channels_last;
    EXPECT_TRUE(whole.allclose(state, 1e-4, 1e-5)) << channels_last;
    EXPECT_TRUE(cut_weight.allclose(weight, 1e-3, 1e-4)) << channels_last;
    EXPECT_TRUE(whole_weight.allclose(weight, 1e-3, 1e-4)) << channels_last;
  }
}

}  // namespace
}  // namespace lockstep
