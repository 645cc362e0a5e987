#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <array>
#include <chrono>
#include <memory>

#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/one_weight.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"
#include "tests/support/watchdog.h"

// Mistakes that once silently gave a wrong result. Each is rejected, warned about, or corrected.
namespace lockstep {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

class SilentMistakes : public OneWeightTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, SilentMistakes, testing::Values(2, 3));

// ---------------------------------------------------------------------------------------------------------------------
// Timeouts

TEST(LateReplicas, AreNoticedByEveryMeetingOfTheOptimizerBeforeAnythingChanges) {
  const Watchdog watchdog(std::chrono::seconds(120), "late replicas");
  MirroredStrategy strategy({.devices = test_devices(2), .communication = {.timeout_seconds = 0.1}});
  auto model = strategy.make<OneWeight>();
  auto optimizer = strategy.make_optimizer<SGD>(model, 1.0);
  set_log_severity(Severity::Info);
  const LoggedLines lines;
  int missed = 0;
  bool was_late = false;
  const auto be_late = [&] {  // replica 0 has timed out by then
    if (my_id() != 1) return;
    lines.await("deadline exceeded", missed + 1);
    was_late = true;
  };
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"minimize",
       [&] {
         const auto loss = model->forward(torch::ones({1})).sum();
         be_late();
         optimizer.minimize(loss);
       }},
      {"reduce_gradients",
       [&] {
         optimizer.backward(model->forward(torch::ones({1})).sum());
         be_late();
         optimizer.reduce_gradients();
         optimizer.step();
       }},
      {"step",
       [&] {
         optimizer.backward(model->forward(torch::ones({1})).sum());
         optimizer.reduce_gradients();
         be_late();
         optimizer.step();
       }},
      {"clip_global_norm", [&] {
         optimizer.backward(model->forward(torch::ones({1})).sum());
         optimizer.reduce_gradients();
         be_late();
         optimizer.clip_global_norm(0.1);
         optimizer.step();
       }}};
  for (const auto& [name, call] : calls) {
    // On a busy machine an earlier meeting may time out instead: try again.
    for (was_late = false; !was_late && !HasFailure();) {
      std::array<bool, 2> timed_out{};
      missed = lines.count("deadline exceeded");
      expect_error(
          [&] {
            strategy.run([&] {
              try {
                call();
              } catch (const DeadlineExceeded&) {
                timed_out[static_cast<std::size_t>(my_id())] = true;
                throw;
              }
            });
          },
          Code::DeadlineExceeded, errors::kTimeout, {"timeout"}, name);
      EXPECT_TRUE(timed_out[0] && timed_out[1]) << name << ": the verdict is the same on every replica";
      EXPECT_EQ(weight_of(model), 1.0) << name;
      EXPECT_EQ(optimizer.steps(), 0) << name;
    }
  }
  const auto train = [&] { strategy.run([&] { optimizer.minimize(model->forward(torch::ones({1})).sum()); }); };
  while (!message_of<DeadlineExceeded>(train).empty()) {
  }
  EXPECT_EQ(weight_of(model), -1.0) << "all in time";
}

// ---------------------------------------------------------------------------------------------------------------------
// Sparse gradients, frozen parameters

TEST_P(SilentMistakes, NesterovTakesSparseGradientsWithDenseMomentum) {
  const auto train = [&](bool sparse_at_last) {
    MirroredStrategy of(on_devices(replicas()));
    auto table = of.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)); });
    copy_values({torch::ones({4, 2})}, table.parameters());
    auto sgd = of.make_optimizer<SGD>(table, SGDOptions(0.1).momentum(0.9).nesterov(true));
    const auto step = [&](bool sparse) {
      of.run([&] {
        const auto row = here(at::tensor({1}));
        sgd.minimize((sparse ? table->forward(row) : table->weight.index_select(0, row)).sum());
      });
    };
    step(false);  // a dense gradient leaves dense momentum behind
    step(sparse_at_last);
    step(sparse_at_last);
    return table->weight.detach().clone();
  };
  EXPECT_TRUE(at::allclose(train(true), train(false)));
}

TEST_P(SilentMistakes, ParametersFrozenWhenMadeAreGuardedOnceTheyAreNot) {
  auto frozen = strategy.make([] {
    auto net = std::make_shared<OneWeight>();
    net->w.requires_grad_(false);
    return net;
  });
  strategy.run([&] { frozen->w.requires_grad_(true); });
  expect_error([&] { strategy.run([&] { frozen.replica(0)->forward(torch::ones({1})).sum().backward(); }); },
               Code::FailedPrecondition, errors::kWrongModule, {"replica 0's 'w' was computed on replica"});
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients of another optimizer or model

TEST_P(SilentMistakes, GradientsLeftOverAreWarnedAboutOnce) {
  const auto step = [&] { strategy.run([&] { optimizer.minimize(model->forward(torch::ones({1})).sum()); }); };
  {
    LoggedLines lines;
    step();
    EXPECT_EQ(lines.count("'w' has a gradient"), 0);
    model->forward(torch::ones({1})).sum().backward();  // outside of run: replica 0's
    step();
    EXPECT_EQ(lines.count("'w' has a gradient on replica 0"), 1);
    EXPECT_EQ(lines.count("zero_grad()"), 1);
    model->forward(torch::ones({1})).sum().backward();
    step();
    EXPECT_EQ(lines.count("'w' has a gradient"), 1) << "once";
  }
  LoggedLines lines;
  auto other = strategy.make_optimizer<SGD>(model, 1.0);
  strategy.run([&] {
    other.backward(model->forward(torch::ones({1})).sum());  // several calls of its own
    other.backward(model->forward(torch::ones({1})).sum());
    other.reduce_gradients();
    other.step();
    model->zero_grad(/*set_to_none=*/false);
    other.minimize(model->forward(torch::ones({1})).sum());  // zeros do not count as a gradient
  });
  EXPECT_EQ(lines.count("has a gradient"), 0);
}

TEST_P(SilentMistakes, GradientsThatChangeBeforeTheirStepAreWarnedAboutOnce) {
  constexpr const char* kWarning = "'w' was changed on replica";
  auto generator = strategy.make<OneWeight>();
  auto generator_optimizer = strategy.make_optimizer<SGD>(generator, 1.0);
  const auto go_backward = [&](MirroredOptimizer<SGD>& of_model) {
    of_model.backward(model->forward(torch::ones({1})).sum());
  };
  // The generator's loss goes through the model, whose gradients wait: for the rest of a window, or for their
  // reduction.
  const auto generate = [&] {
    generator_optimizer.minimize(model->forward(generator->forward(torch::ones({1}))).sum());
  };
  {
    const LoggedLines lines;
    optimizer.set_accumulate(2);
    for (int i = 0; i < 2; ++i) {
      strategy.run([&] { optimizer.minimize(model->forward(torch::ones({1})).sum()); });
    }
    EXPECT_EQ(lines.count(kWarning), 0) << "calls of its own";
    for (int i = 0; i < 4; ++i) {
      strategy.run([&] {
        optimizer.minimize(model->forward(torch::ones({1})).sum());
        if (i % 2 == 0) generate();
      });
    }
    EXPECT_EQ(lines.count(kWarning), 1);
    EXPECT_EQ(lines.count("requires_grad_(false)"), 1);
  }
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"another model's loss", generate},
      {"clipping", [&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 0.01); }}};
  for (const auto& [name, change] : changes) {
    const LoggedLines lines;
    auto other = strategy.make_optimizer<SGD>(model, 1.0);
    strategy.run([&] {
      go_backward(other);
      go_backward(other);
      other.reduce_gradients();
      other.step();
    });
    EXPECT_EQ(lines.count(kWarning), 0) << name;
    for (int i = 0; i < 2; ++i) {
      strategy.run([&, &change_now = change] {
        go_backward(other);
        change_now();
        other.reduce_gradients();
        other.step();
      });
    }
    EXPECT_EQ(lines.count(kWarning), 1) << name;
  }
}

TEST_P(SilentMistakes, ClippingOfAPartBeforeTheReductionIsWarnedAbout) {
  auto net = strategy.make<SmallNet>();
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"norm", [&] { torch::nn::utils::clip_grad_norm_(net->second->parameters(), 1e-3); }},
      {"value", [&] { torch::nn::utils::clip_grad_value_(net->parameters(), 1e-3); }}};
  for (const auto& [name, change] : changes) {
    const LoggedLines lines;
    auto sgd = strategy.make_optimizer<SGD>(net, 0.1);
    strategy.run([&, &change_now = change] {
      sgd.backward(net->forward(torch::ones({3, 9})).square().sum());
      change_now();
      sgd.reduce_gradients();
      sgd.step();
    });
    EXPECT_EQ(lines.count("was changed on replica"), 1) << name;
  }
}

TEST_P(SilentMistakes, ALossThatIsAlreadyReducedIsWarnedAboutOnce) {
  auto trainer = strategy.make_optimizer<SGD>(model, 0.0);
  const auto train = [&](ReduceOp op) {
    strategy.run([&] {
      const at::Tensor own = model->forward(torch::ones({1})).sum();
      trainer.minimize(get_replica_context().all_reduce(op, own));
    });
  };
  LoggedLines log;
  trainer.set_reduce_op(ReduceOp::Mean);
  train(ReduceOp::Sum);
  EXPECT_TRUE(log.lines().empty()) << "the mean of the sums is the sum";
  trainer.set_reduce_op(ReduceOp::Sum);
  train(ReduceOp::Mean);
  train(ReduceOp::Sum);
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].find("loss.detach()"), std::string::npos) << log.lines()[0];
  strategy.run([&] {
    const at::Tensor own = model->forward(torch::ones({1})).sum();
    get_replica_context().all_reduce(ReduceOp::Sum, own.detach());
    trainer.minimize(own);
  });
}

TEST_P(SilentMistakes, TwoOptimizersOfOneModelTakeTheirSteps) {
  auto net = strategy.make<SmallNet>();
  auto first = strategy.make_optimizer<SGD>(net, {{{"first."}, SGDOptions(0.1)}});
  auto second = strategy.make_optimizer<SGD>(net, {{{"second."}, SGDOptions(0.1)}});
  strategy.run([&] {
    first.backward(net->forward(torch::ones({3, 9})).square().sum());
    first.reduce_gradients();
    second.reduce_gradients();
    first.clip_global_norm(1e-3);
    first.step();
    second.step();
  });
  EXPECT_EQ(first.steps() + second.steps(), 2);
}

TEST_P(SilentMistakes, ClippingByLibTorchBetweenReductionAndStepIsRefused) {
  const auto model_of_two = strategy.make([] { return torch::nn::Linear(3, 2); });
  auto sgd = strategy.make_optimizer<SGD>(model_of_two, 0.1);
  const auto before = copies_of(model_of_two.parameters());
  const auto reduce = [&] {
    sgd.backward(model_of_two->forward(torch::ones({2, 3})).square().sum());
    sgd.reduce_gradients();
  };
  expect_error(
      [&] {
        strategy.run([&] {
          reduce();
          torch::nn::utils::clip_grad_norm_(model_of_two->parameters(), 0.01);
          sgd.step();
        });
      },
      Code::FailedPrecondition, errors::kOptimizer, {"changed between reduce_gradients and step", "clip_global_norm"});
  EXPECT_EQ(first_difference(before, copies_of(model_of_two.parameters())), "");
  strategy.run([&] {
    sgd.zero_grad();
    reduce();
    sgd.clip_global_norm(0.01);
    sgd.clip_value(0.005);
    sgd.step();
  });
  EXPECT_EQ(sgd.steps(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients passed by the program

TEST_P(SilentMistakes, ApplyGradientsDoesWhatMinimizeDoes) {
  const auto batch = random_batch(12);
  const auto train = [&](auto step) {
    MirroredStrategy of({.devices = test_devices(replicas()), .seed = 3});
    auto net = of.make<SmallNet>();
    auto sgd = of.make_optimizer<SGD>(net, SGDOptions(0.1).momentum(0.9));
    for (int i = 0; i < 3; ++i) {
      of.run(
          [&](const Batch& mine) { step(sgd, net, average_loss(loss_per_row(net->forward(mine.rows), mine.labels))); },
          share_out(of, batch));
    }
    EXPECT_EQ(sgd.steps(), 3);
    return copies_of(net.parameters());
  };
  const auto gradients = [](auto& net, const at::Tensor& loss) {
    return torch::autograd::grad({loss}, net->parameters(), {}, {}, false, /*allow_unused=*/true);
  };
  const auto minimized = train([](auto& sgd, auto&, const at::Tensor& loss) { sgd.minimize(loss); });
  const auto applied = train(
      [&](auto& sgd, auto& net, const at::Tensor& loss) { EXPECT_TRUE(sgd.apply_gradients(gradients(net, loss))); });
  EXPECT_EQ(first_difference(minimized, applied), "");
  const auto applied_reduced = train([&](auto& sgd, auto&, const at::Tensor& loss) {
    sgd.backward(loss);
    sgd.reduce_gradients();
    const auto reduced = sgd.gradients();
    sgd.zero_grad();
    sgd.apply_gradients(reduced, GradientsOf::AllReplicas);
  });
  EXPECT_EQ(first_difference(minimized, applied_reduced), "");
}

TEST_P(SilentMistakes, ApplyGradientsChecksWhatItIsGiven) {
  const auto apply = [&](auto gradients, GradientsOf whose = GradientsOf::ThisReplica) {
    return [this, gradients, whose] { strategy.run([&] { optimizer.apply_gradients(gradients(), whose); }); };
  };
  using Gradients = std::vector<at::Tensor>;
  expect_error(apply([] { return Gradients{}; }), Code::InvalidArgument, errors::kOptimizer,
               {"1 parameter, got 0 gradients"});
  expect_error(apply([] { return Gradients{torch::ones({2})}; }), Code::InvalidArgument, errors::kOptimizer,
               {"'w' does not fit", "[2]"});
  expect_error(apply([] { return Gradients{torch::ones({1}, at::kDouble)}; }), Code::InvalidArgument,
               errors::kOptimizer, {"'w' does not fit"});
  expect_error(apply([] {
                 return torch::OrderedDict<std::string, at::Tensor>({{"v", torch::ones({1})}});
               }),
               Code::InvalidArgument, errors::kOptimizer, {"no parameter 'v'"});
  expect_error(apply([] { return Gradients{torch::full({1}, my_id(), at::kFloat)}; }, GradientsOf::AllReplicas),
               Code::FailedPrecondition, errors::kDifferentCollective, {"different gradients"});
  EXPECT_EQ(weight_of(model), 1.0);
  apply([] { return Gradients{torch::ones({1})}; }, GradientsOf::AllReplicas)();
  EXPECT_EQ(weight_of(model), 0.0) << "counted once";
  apply([] { return Gradients{torch::ones({1})}; })();
  EXPECT_EQ(weight_of(model), -replicas()) << "summed over replicas";
}
}  // namespace
}  // namespace lockstep
