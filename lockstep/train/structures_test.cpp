#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/strategy/replica_context.h"
#include "lockstep/train.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"

// Models whose outputs, inputs and targets are structures of tensors.
namespace lockstep {
namespace {

using at::Tensor;
using Sgd = torch::optim::SGD;

struct Outputs {
  Tensor classes, size;
};

/// Two heads.
struct Heads : torch::nn::Module {
  Heads() : trunk(9, 12), classes(12, 4), size(12, 1) {
    register_module("trunk", trunk);
    register_module("classes", classes);
    register_module("size", size);
  }
  Outputs forward(const Tensor& x) {
    const Tensor shared = trunk(x).tanh();
    return {classes(shared), size(shared).squeeze(1)};
  }
  torch::nn::Linear trunk, classes, size;
};

struct Targets {
  Tensor labels, sizes;
};
using Rows = std::pair<Tensor, Targets>;

Rows rows_with_targets(std::int64_t count) {
  const Batch rows = known_rows(count);
  return {rows.rows, {rows.labels, rows.rows.sum(1)}};
}

Tensor losses_of(const Outputs& output, const Targets& target) {
  return loss_per_row(output.classes, target.labels) + at::mse_loss(output.size, target.sizes, at::Reduction::None);
}

template <class Net>
struct Program {
  explicit Program(int replicas, train::ModelOptions options)
      : strategy({.devices = test_devices(replicas), .intra_op_threads = 1, .seed = 11}),
        net(strategy.make<Net>()),
        optimizer(strategy.make_optimizer<Sgd>(net, 0.05)),
        model(net, optimizer, std::move(options)) {}

  template <class T>
  train::History fit(const T& rows, int epochs = 2) {
    return model.fit(data::from_tensor_slices(rows).batch(8), {.epochs = epochs, .verbose = train::Verbose::Silent});
  }

  MirroredStrategy strategy;
  MirroredModule<Net> net;
  MirroredOptimizer<Sgd> optimizer;
  train::Model model;
};

train::ModelOptions options_of_heads() {
  using namespace train::metrics;
  return {.loss = losses_of,
          .metrics = {select(accuracy(),
                             [](const Outputs& o, const Targets& t) {
                               return std::pair{o.classes, t.labels};
                             }),
                      select(mae(), [](const Outputs& o, const Targets& t) {
                        return std::pair{o.size, t.sizes};
                      })}};
}

TEST(Structures, OutputsAndTargetsOfSeveralTensorsHaveTheBitsOfTheLoopByHand) {
  const Rows rows = rows_with_targets(21);
  for (const int replicas : {1, 2, 3}) {
    Program<Heads> by_fit(replicas, options_of_heads()), by_hand(replicas, options_of_heads());
    const train::History history = by_fit.fit(rows);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : by_hand.strategy.distribute(data::from_tensor_slices(rows).batch(8))) {
        by_hand.strategy.run(
            [&](const Rows& mine) {
              by_hand.optimizer.minimize(average_loss(losses_of(by_hand.net->forward(mine.first), mine.second)));
            },
            batch);
      }
    }
    EXPECT_EQ(first_difference(copies_of(by_fit.net.parameters()), copies_of(by_hand.net.parameters())), "")
        << replicas;
    EXPECT_LT(history.last("loss"), history.of("loss")[0]);
  }
}

TEST(Structures, SelectedMetricsAreThoseOfTheirTensors) {
  const Rows rows = rows_with_targets(21);
  Program<Heads> program(2, options_of_heads());
  const train::Logs logs = program.model.evaluate(data::from_tensor_slices(rows).batch(8));
  const Outputs output = program.net->forward(here(rows.first));
  EXPECT_DOUBLE_EQ(logs.at("accuracy"),
                   output.classes.argmax(1).eq(here(rows.second.labels)).to(at::kDouble).mean().item<double>());
  EXPECT_NEAR(logs.at("mae"), output.size.sub(here(rows.second.sizes)).abs().mean().item<double>(), 1e-6);
  EXPECT_NEAR(logs.at("loss"),
              losses_of(output, {here(rows.second.labels), here(rows.second.sizes)}).mean().item<double>(), 1e-5);
}

TEST(Structures, PredictReturnsWhatForwardReturnsWithRowsJoined) {
  const Rows rows = rows_with_targets(21);
  for (const int replicas : {1, 3}) {
    Program<Heads> program(replicas, options_of_heads());
    const Outputs predicted = program.model.predict<Outputs>(data::from_tensor_slices(rows).batch(8));
    const at::NoGradGuard no_grad;
    const Outputs expected = program.net->forward(here(rows.first));
    ASSERT_EQ(predicted.classes.sizes(), expected.classes.sizes());
    ASSERT_EQ(predicted.size.sizes(), expected.size.sizes());
    EXPECT_LT(predicted.classes.sub(expected.classes.cpu()).abs().max().item<double>(), 1e-5);
    EXPECT_LT(predicted.size.sub(expected.size.cpu()).abs().max().item<double>(), 1e-5);
    EXPECT_TRUE(predicted.size.is_cpu());
  }
}

/// Two inputs.
struct Bilinear : torch::nn::Module {
  Bilinear() : one(9, 4), two(5, 4) {
    register_module("one", one);
    register_module("two", two);
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return one(x) * two(y); }
  torch::nn::Linear one, two;
};

struct Three {
  Tensor x, y, labels;
};

TEST(Structures, ForwardTakesItsParametersFromTheBatch) {
  const Batch known = known_rows(21);
  const Tensor more = torch::sin(torch::arange(21 * 5, at::kFloat)).view({21, 5});
  const train::ModelOptions options{.loss = train::losses::cross_entropy(), .metrics = {train::metrics::accuracy()}};
  Program<Bilinear> of_fields(2, options), of_parts(2, options), of_batch(2, options), of_function(2, options);
  const Three three{known.rows, more, known.labels};
  of_fields.fit(three);
  of_parts.fit(std::pair{std::pair{known.rows, more}, known.labels});
  train::ModelOptions whole{
      .loss = [](const Tensor& output, const Three& mine) { return loss_per_row(output, mine.labels); },
      .forward = [net = of_batch.net](const Three& mine) { return net->forward(mine.x, mine.y); }};
  train::Model(of_batch.net, of_batch.optimizer, whole)
      .fit(data::from_tensor_slices(three).batch(8), {.epochs = 2, .verbose = train::Verbose::Silent});
  const auto expected = copies_of(of_fields.net.parameters());
  EXPECT_NE(first_difference(expected, copies_of(of_function.net.parameters())), "") << "nothing was learnt";
  EXPECT_EQ(first_difference(copies_of(of_parts.net.parameters()), expected), "");
  EXPECT_EQ(first_difference(copies_of(of_batch.net.parameters()), expected), "");
}

TEST(Structures, ASelectorOfTheOutputKeepsTheTargetOfTheBatch) {
  using namespace train::metrics;
  const Batch known = known_rows(21);
  Program<Heads> program(
      2, {.loss = [](const Outputs& o, const Tensor& labels) { return loss_per_row(o.classes, labels); },
          .metrics = {select(accuracy(), [](const Outputs& o) { return o.classes; })}});
  const train::Logs logs = program.model.evaluate(data::from_tensor_slices(known).batch(8));
  const Tensor right = program.net->forward(here(known.rows)).classes.argmax(1).eq(here(known.labels));
  EXPECT_DOUBLE_EQ(logs.at("accuracy"), right.to(at::kDouble).mean().item<double>());
}

TEST(Structures, OutputsOfOneTensorCanBeSelectedToo) {
  MirroredStrategy strategy(on_cpus(2));
  train::Meters meters(strategy, {train::metrics::select(train::metrics::mse(), [](const Tensor& o, const Tensor& t) {
                         return std::pair{o.select(1, 0), t};
                       })});
  const Tensor output = torch::tensor({1.0F, 9.0F, 2.0F, 9.0F}).view({2, 2});
  strategy.run([&] {
    const auto device = get_replica_context().device();
    meters.add(output.to(device), torch::zeros({2}, device));
  });
  EXPECT_DOUBLE_EQ(meters.values().at("mse"), 2.5);
}

TEST(Structures, ASelectionOfASelectionMeasuresWhatBothSelect) {
  using namespace train::metrics;
  MirroredStrategy strategy(on_cpus(2));
  const auto first = [](const Tensor& o, const Tensor& t) { return std::pair{o.select(1, 0), t}; };
  const auto opposite = [](const Tensor& o) { return 1 - o; };
  const Tensor output = torch::tensor({0.1F, 0.9F, 0.2F, 0.8F, 0.3F, 0.7F, 0.4F, 0.6F}).view({4, 2});
  const Tensor target = torch::tensor({0.0F, 1.0F, 0.0F, 1.0F});
  for (const train::MetricPtr& metric : {auc({.exact = true}), mse()}) {
    train::Meters selected(strategy, {select(select(metric, opposite), first)}), direct(strategy, {metric});
    strategy.run([&] {
      const auto device = get_replica_context().device();
      selected.add(output.to(device), target.to(device));
      direct.add(1 - output.select(1, 0).to(device), target.to(device));
    });
    EXPECT_EQ(selected.values(), direct.values()) << metric->name();
  }
}

TEST(Structures, ASelectionOfASelectionMeasuresPartsOfStructures) {
  using namespace train::metrics;
  const auto classes = [](const Outputs& o, const Targets& t) {
    return std::pair{o.classes.select(1, 0), t.labels.lt(2)};
  };
  const auto opposite = [](const Tensor& o) { return -o; };
  const auto both = [](const Outputs& o, const Targets& t) {
    return std::pair{-o.classes.select(1, 0), t.labels.lt(2)};
  };
  Program<Heads> nested(2, {.loss = losses_of, .metrics = {select(select(auc({.exact = true}), opposite), classes)}});
  Program<Heads> single(2, {.loss = losses_of, .metrics = {select(auc({.exact = true}), both)}});
  const Rows rows = rows_with_targets(21);
  EXPECT_EQ(nested.fit(rows).epochs, single.fit(rows).epochs);
}

struct StructureMistake {
  std::string name;
  std::function<void()> make;
  std::vector<std::string> fragments;
  Code code = Code::InvalidArgument;
  int number = errors::kStructure;
};

/// With a state that has its rows in dimension 1.
struct Recurrent : torch::nn::Module {
  Recurrent() : lstm(torch::nn::LSTMOptions(9, 4).batch_first(true)) { register_module("lstm", lstm); }
  std::tuple<Tensor, std::tuple<Tensor, Tensor>> forward(const Tensor& x) { return lstm(x.unsqueeze(1)); }
  torch::nn::LSTM lstm;
};

struct Overloaded : torch::nn::Module {
  Outputs forward(const Targets& x) { return {x.labels, x.sizes}; }
  Outputs forward(const Three& x) { return {x.x, x.y}; }
};

TEST(Structures, MistakesAreOneClearErrorEach) {
  const Rows rows = rows_with_targets(21);
  const Batch known = known_rows(21);
  const auto tensors = data::from_tensor_slices(known).batch(8);
  const std::vector<StructureMistake> table = {
      {"a loss of tensors",
       [&] { Program<Heads>(2, {.loss = train::losses::cross_entropy()}).fit(known); },
       {"the loss takes (tensor, tensor)", "output: Outputs", ".loss = [](const Outputs& output, const Batch& mine)"}},
      {"a metric without select",
       [&] { Program<Heads>(2, {.loss = losses_of, .metrics = {train::metrics::accuracy()}}).fit(rows); },
       {"metric \"accuracy\" needs an output and a target that are one tensor each", "metrics::select"}},
      {"a selector of other types",
       [&] {
         const auto f = [](const Outputs& o, const Three& t) { return std::pair{o.size, t.x}; };
         Program<Heads>(2, {.loss = losses_of, .metrics = {train::metrics::select(train::metrics::mse(), f)}})
             .fit(rows);
       },
       {"metric \"mse\"", "takes (Outputs, Three)"}},
      {"a selector without a target",
       [&] {
         const auto f = [](const Outputs& o) { return o.size; };
         Program<Heads>(2, {.loss = losses_of, .metrics = {train::metrics::select(train::metrics::mse(), f)}})
             .fit(rows);
       },
       {"the target is not a tensor", "return std::pair{output, target}"}},
      {"predict as a tensor",
       [&] { Program<Heads>(2, options_of_heads()).model.predict(tensors); },
       {"predict must return Outputs, as the model's forward does, got tensor", "model.predict<Outputs>(batches)"}},
      {"predict of tensors without rows",
       [&] {
         using State = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
         Program<Recurrent>(2, {}).model.predict<State>(tensors);
       },
       {"needs outputs whose first dimension is the rows of the batch", ".forward"},
       Code::InvalidArgument,
       errors::kShape},
      {"other parameters",
       [&] { Program<Bilinear>(2, {.loss = train::losses::mse()}).fit(rows); },
       {"forward takes (tensor, tensor), which a batch does not begin with", ".forward = [net](const "}},
      {"a network with overloads",
       [&] {
         MirroredStrategy strategy(on_cpus(2));
         auto net = strategy.make<Overloaded>();
         auto of_net = strategy.make<Heads>();
         auto optimizer = strategy.make_optimizer<Sgd>(of_net, 0.1);
         train::Model(net, optimizer, {}).predict<Outputs>(data::from_tensor_slices(rows).batch(8));
       },
       {"overloaded", ".forward = [net](const Input& input)"},
       Code::FailedPrecondition},
      {"three fields and a loss of the target",
       [&] {
         Program<Heads>(2, {.loss = losses_of}).fit(Three{known.rows, known.rows, known.labels});
       },
       {"the loss takes (Outputs, Targets), and must take the output and the batch"}},
  };
  for (const StructureMistake& mistake : table)
    expect_error(mistake.make, mistake.code, mistake.number, mistake.fragments, mistake.name);
}

}  // namespace
}  // namespace lockstep
