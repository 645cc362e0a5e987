#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/comm/worker_group.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"
#include "tests/support/watchdog.h"

// Mistakes that once gave a wrong result without a word. Each is refused, warned about, or made right.
namespace lockstep {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

/// y = w x, with one weight.
struct OneWeight : torch::nn::Module {
  OneWeight() { w = register_parameter("w", torch::ones({1})); }
  at::Tensor forward(const at::Tensor& x) { return w * x; }
  at::Tensor w;
};

double weight_of(const MirroredModule<OneWeight>& model) { return model->w.item<double>(); }

class SilentMistakes : public testing::TestWithParam<int> {
 protected:
  SilentMistakes() : strategy(on_cpus(GetParam())), model(strategy.make<OneWeight>()) {
    set_log_severity(Severity::Info);
  }
  int replicas() const { return GetParam(); }

  MirroredStrategy strategy;
  MirroredModule<OneWeight> model;
  MirroredOptimizer<SGD> optimizer = strategy.make_optimizer<SGD>(model, 1.0);
};
INSTANTIATE_TEST_SUITE_P(Replicas, SilentMistakes, testing::Values(2, 3));

// ---------------------------------------------------------------------------------------------------------------------
// Timeouts

TEST(LateReplicas, AreNoticedByEveryMeetingOfTheOptimizerBeforeAnythingChanges) {
  const Watchdog watchdog(std::chrono::seconds(120), "late replicas");
  MirroredStrategy strategy({.devices = cpus(2), .communication = {.timeout_seconds = 0.1}});
  auto model = strategy.make<OneWeight>();
  auto optimizer = strategy.make_optimizer<SGD>(model, 1.0);
  set_log_severity(Severity::Info);
  const LoggedLines lines;
  int missed = 0;
  bool was_late = false;
  const auto be_late = [&] {  // replica 0 has waited in vain by then
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
    // On a busy machine an earlier meeting may time out instead: then once more.
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
    MirroredStrategy of(on_cpus(replicas()));
    auto table = of.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)); });
    copy_values({torch::ones({4, 2})}, table.parameters());
    auto sgd = of.make_optimizer<SGD>(table, SGDOptions(0.1).momentum(0.9).nesterov(true));
    const auto step = [&](bool sparse) {
      of.run([&] {
        const auto row = at::tensor({1});
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
// average_loss

TEST_P(SilentMistakes, AverageLossRefusesANumber) {
  expect_error([&] { strategy.run([&] { average_loss(torch::tensor(3.0)); }); }, Code::InvalidArgument, errors::kShape,
               {"one loss for each example", "reduction None"});
  expect_error([&] { strategy.run([&] { compute_average_loss(torch::tensor(3.0)); }); }, Code::InvalidArgument,
               errors::kShape, {"one loss for each example"});
}

TEST_P(SilentMistakes, AverageLossTakesIntegersAndWeights) {
  strategy.run([&] {
    const double r = replicas();
    EXPECT_DOUBLE_EQ(average_loss(at::tensor({1, 2, 4}, at::kInt)).item<double>(), 7 / (3 * r));
    const auto losses = at::tensor({1.0, 2.0, 4.0});
    const auto by_row = at::tensor({1.0, 0.0, 0.5});
    for (const auto& weight : {by_row, by_row.unsqueeze(1)})
      EXPECT_DOUBLE_EQ(average_loss(losses, {.sample_weight = weight}).item<double>(), 3 / (3 * r));
    EXPECT_DOUBLE_EQ(average_loss(losses, {.sample_weight = at::tensor(2.0)}).item<double>(), 14 / (3 * r));
    EXPECT_DOUBLE_EQ(average_loss(losses, {.global_batch = 7, .sample_weight = by_row}).item<double>(), 3.0 / 7);
    const auto by_place = losses.unsqueeze(1).expand({3, 2});
    EXPECT_DOUBLE_EQ(average_loss(by_place, {.sample_weight = by_row}).item<double>(), 6 / (3 * r));
    EXPECT_EQ(error_of([&] { average_loss(losses, {.sample_weight = at::ones({2})}); }).number, errors::kShape);
    const auto small = at::full({3}, 100, at::kChar);  // whose products its type does not hold
    EXPECT_DOUBLE_EQ(average_loss(small, {.sample_weight = at::full({3}, 2, at::kChar)}).item<double>(), 200 / r);
    const auto half = average_loss(at::full({3}, 0.5, at::kHalf), {.sample_weight = at::full({3}, 1e5)});
    EXPECT_NEAR(half.item<double>(), 5e4 / r, 32);
    EXPECT_EQ(half.scalar_type(), at::kHalf);
  });
}

/// Replica k gets k + 1 rows of its number.
PerReplica<at::Tensor> uneven(Strategy& strategy, int first = 1) {
  return strategy.values_from_function([&](const ValueContext& its) {
    const int k = its.replica_id_in_sync_group;
    return at::full({k + first}, k + 1.0);
  });
}

TEST_P(SilentMistakes, AverageLossOfHalfPrecisionHoldsWhatTheirSumDoesNot) {
  const auto batch = strategy.split(torch::full({4096}, 40.0, at::kHalf).requires_grad_());
  const auto shares = strategy.run([](const at::Tensor& losses) { return average_loss(losses); }, batch);
  EXPECT_EQ(shares[0].scalar_type(), at::kHalf);
  EXPECT_NEAR(strategy.reduce(ReduceOp::Sum, shares).item<double>(), 40.0, 0.05);
  const auto by_rule = strategy.run([](const at::Tensor& losses) { return compute_average_loss(losses); }, batch);
  EXPECT_NEAR(by_rule[0].item<double>(), 40.0 / replicas(), 0.05);
}

TEST_P(SilentMistakes, AverageLossCountsTheRowsOfAllReplicas) {
  for (const int first : {1, 0}) {  // also with a replica that has none
    const auto rows = uneven(strategy, first);
    float sum = 0;
    float count = 0;
    for (const auto& part : rows) {
      sum += part.sum().item<float>();
      count += static_cast<float>(part.size(0));
    }
    const auto total = [&](auto loss_of) {
      return strategy.reduce(ReduceOp::Sum, strategy.run(loss_of, rows)).template item<float>();
    };
    EXPECT_FLOAT_EQ(total([](const at::Tensor& x) { return average_loss(x); }), sum / count);
    EXPECT_FLOAT_EQ(total([](const at::Tensor& x) {
                      return average_loss(at::cat({x, x, x}));
                    }),
                    sum / count)
        << "losses that are not one per row";
    EXPECT_FLOAT_EQ(total([](const at::Tensor& x) { return average_loss(x.clone(), global_rows(x)); }), sum / count);
    const auto without_argument = strategy.run([&] { return average_loss(rows[static_cast<std::size_t>(my_id())]); });
    EXPECT_FLOAT_EQ(strategy.reduce(ReduceOp::Sum, without_argument).item<float>(), sum / count);
  }
  const auto rows = uneven(strategy);
  strategy.run(
      [&](const at::Tensor& x) {
        EXPECT_FLOAT_EQ(compute_average_loss(x).item<float>(),
                        static_cast<float>(my_id() + 1) / static_cast<float>(replicas()))
            << "TensorFlow's rule";
      },
      rows);
}

TEST_P(SilentMistakes, AverageLossMeetsNobodyWhereTheBatchTellsTheRows) {
  const auto rows = uneven(strategy);
  strategy.run(
      [&](const at::Tensor& x) {
        if (my_id() == 0) average_loss(x);  // a meeting would never end well
      },
      rows);
}

TEST_P(SilentMistakes, LossesOfSomeRowsOnlyNeedASize) {
  const auto rows = uneven(strategy);
  const auto pick = [](const at::Tensor& x) { return my_id() == 0 ? x : x.slice(0, 1); };
  const auto error = error_of([&] {
    strategy.run([&](const at::Tensor& x) { optimizer.minimize(average_loss(model->forward(pick(x)))); }, rows);
  });
  EXPECT_EQ(error.number, errors::kDifferentCollective) << error.text;
  EXPECT_TRUE(contains(error.text, "global_rows")) << error.text;
  strategy.run(
      [&](const at::Tensor& x) {
        const auto losses = model->forward(pick(x));
        optimizer.minimize(average_loss(losses, global_rows(losses)));
      },
      rows);
}

TEST_P(SilentMistakes, LossesOfSomeRowsInTwoCallsAreNotMixedUp) {
  const auto rows = strategy.split(torch::ones({4 * replicas()}));
  const auto error = error_of([&] {
    strategy.run(
        [&](const at::Tensor& x) {
          const auto some = [&](bool all) { return average_loss(model->forward(all ? x : x.slice(0, 1))); };
          optimizer.minimize(some(my_id() == 0) + some(my_id() != 0));
        },
        rows);
  });
  EXPECT_EQ(error.number, errors::kDifferentCollective) << error.text;
  EXPECT_EQ(weight_of(model), 1.0);
}

TEST_P(SilentMistakes, RowsAreFoundInStructures) {
  using Named = std::map<std::string, at::Tensor>;
  const auto all = torch::ones({2 * replicas() + 1});
  const auto alone = [&](const auto& mine) {
    const auto& x = std::get<0>(mine);
    if (my_id() == 0) average_loss(x);  // a meeting would never end well
  };
  strategy.run(alone, strategy.split(std::pair{all, all}));
  strategy.run([&](const Named& mine) { alone(std::tuple{mine.at("x")}); }, strategy.split(Named{{"x", all}}));
}

/// One of two workers, whose other is never asked.
class OneOfTwo final : public Strategy {
  class Others final : public WorkerGroup {
   public:
    using WorkerGroup::WorkerGroup;
    Ticket submit(Channel, const Collective&, Deadline) override { return 0; }
    void wait(Ticket) override {}
    void require_same(std::string_view, const std::vector<std::string>&) override {}
    void barrier(std::string_view, Deadline) override {}
    std::string chiefs(std::string_view, std::string_view value) override { return std::string(value); }
    void set_place(std::int64_t, std::string_view) override {}
    void report(const Error&) override {}
    void report(const std::string&) override {}
  };

 public:
  OneOfTwo()
      : Strategy({.devices = plan_mirrored_devices(cpus(1)),
                  .workers = std::make_shared<Others>(WorkerGroup::Shape{.rank = 0, .workers = 2, .replicas = 1})}) {}

 private:
  void run_replicas(FunctionRef<void(int, local::Seat*)> body) override { body(0, nullptr); }
};

TEST_P(SilentMistakes, RowsOfOneWorkerAreNotTakenForThoseOfAll) {
  const auto parts = strategy.split(at::zeros({4}));
  {
    const OneOfTwo worker;
    const auto message = message_of<FailedPrecondition>([&] { global_rows(parts); });
    EXPECT_TRUE(contains(message, "rows of this worker")) << message;
    EXPECT_TRUE(contains(message, "inside run")) << message;
  }
  EXPECT_EQ(global_rows(parts), 4);
}

TEST_P(SilentMistakes, AWindowNeedsTheSizeOfTheWindow) {
  optimizer.set_accumulate(2);
  expect_error([&] { strategy.run([&] { optimizer.minimize(average_loss(model->forward(torch::ones({2})))); }); },
               Code::FailedPrecondition, errors::kOptimizer, {"set_accumulate(2)", "average_loss(losses, size)"});
  for (int i = 0; i < 2; ++i) {
    strategy.run([&] { average_loss(torch::ones({2})); });  // of no concern to the optimizer
    strategy.run([&] {
      average_loss(torch::ones({2}));
      optimizer.minimize(average_loss(model->forward(torch::ones({2})), 4 * replicas()));
    });
  }
  EXPECT_NEAR(weight_of(model), 0.0, 1e-6);
  auto other = strategy.make<OneWeight>();
  auto of_other = strategy.make_optimizer<SGD>(other, 1.0);
  strategy.run([&] {
    const auto x = torch::ones({2});
    of_other.minimize(average_loss(other->forward(x)) + average_loss(other->forward(x)));  // no window there
    optimizer.minimize(average_loss(model->forward(x), 4 * replicas()));
  });
  EXPECT_EQ(error_of([&] {
              strategy.run([&] {
                const auto late = average_loss(model->forward(torch::ones({2})));
                of_other.minimize(average_loss(other->forward(torch::ones({2}))));
                optimizer.minimize(late + 0 * late);
              });
            }).number,
            errors::kOptimizer);
  const auto expect_refused = [&](auto loss_of) {
    EXPECT_EQ(
        error_of([&] { strategy.run([&] { optimizer.minimize(loss_of(model->forward(torch::ones({2})))); }); }).number,
        errors::kOptimizer);
  };
  expect_refused([](const at::Tensor& losses) { return compute_average_loss(losses); });
  expect_refused([&](const at::Tensor& losses) {
    at::Tensor loss = average_loss(losses);
    for (int i = 0; i < 200; ++i) loss = loss + 1e-4 * model->w.square().sum();  // weight decay of a deep model
    return loss;
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients of somebody else

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
    other.minimize(model->forward(torch::ones({1})).sum());  // zeros are no gradient
  });
  EXPECT_EQ(lines.count("has a gradient"), 0);
}

TEST_P(SilentMistakes, GradientsThatChangeBeforeTheirStepAreWarnedAboutOnce) {
  constexpr const char* kWarning = "'w' was changed on replica";
  auto painter = strategy.make<OneWeight>();
  auto of_painter = strategy.make_optimizer<SGD>(painter, 1.0);
  const auto go_backward = [&](MirroredOptimizer<SGD>& of_model) {
    of_model.backward(model->forward(torch::ones({1})).sum());
  };
  // The painter's loss goes through the model, whose gradients wait: for the rest of a window, or for their reduction.
  const auto paint = [&] { of_painter.minimize(model->forward(painter->forward(torch::ones({1}))).sum()); };
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
        if (i % 2 == 0) paint();
      });
    }
    EXPECT_EQ(lines.count(kWarning), 1);
    EXPECT_EQ(lines.count("requires_grad_(false)"), 1);
  }
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"another model's loss", paint},
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
// Weights that are changed inside run

TEST_P(SilentMistakes, WeightsChangedInsideRunAreRefused) {
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"in place",
       [&] {
         const torch::NoGradGuard no_grad;
         model->w.mul_(0.5);
       }},
      {"through parameters()",
       [&] {
         const torch::NoGradGuard no_grad;
         for (auto& p : model->parameters()) p.add_(1);
       }},
      {"through parameters taken before",
       [&, params = model.parameters()]() mutable {
         const torch::NoGradGuard no_grad;
         if (my_id() == 0) params[0].mul_(0.5);  // one at a time, for the sake of the test
       }},
      {"before a step", [&] {
         {
           const torch::NoGradGuard no_grad;
           model->w.mul_(0.5);
         }
         optimizer.minimize(model->forward(torch::ones({1})).sum());
       }}};
  for (const auto& [name, change] : changes) {
    expect_error([&, &f = change] { strategy.run(f); }, Code::FailedPrecondition, errors::kWrongModule,
                 {"'w' was changed inside run", "model.update"}, name);
  }
  const torch::NoGradGuard no_grad;
  model->w.fill_(1);  // outside of run it is changed once, and that is fine
  strategy.run([&] { model->forward(torch::ones({1})); });
}

template <class Optimizer>
void expect_foreign_optimizer_is_refused(Strategy& strategy, MirroredModule<OneWeight>& model) {
  Optimizer plain(model.parameters(), 0.5);
  expect_error(
      [&] {
        strategy.run([&] {
          plain.zero_grad();
          model->forward(torch::ones({1})).sum().backward();
          if (my_id() == 0) plain.step();  // one at a time, for the sake of the test
        });
      },
      Code::FailedPrecondition, errors::kWrongModule, {"'w' was changed inside run", "make_optimizer"});
}

TEST_P(SilentMistakes, AnOptimizerOfLibTorchInsideRunIsRefused) {
  expect_foreign_optimizer_is_refused<SGD>(strategy, model);  // writes through data()
  expect_foreign_optimizer_is_refused<torch::optim::Adam>(strategy, model);
}

TEST_P(SilentMistakes, UpdateChangesWeightsOnce) {
  const auto halve = [](OneWeight& net) { net.w.mul_(0.5); };
  model.update(halve);
  EXPECT_EQ(weight_of(model), 0.5);
  strategy.run([&] {
    model->forward(torch::ones({1}));
    model.update(halve);
    EXPECT_EQ(model->w.item<double>(), 0.25);
    optimizer.minimize(model->forward(torch::ones({1})).sum() / replicas());
    model.update([](OneWeight& net) { net.w.data().clamp_(-0.5, 0.5); });
  });
  EXPECT_EQ(weight_of(model), -0.5);
  strategy.run([&] {
    get_replica_context().merge_call([&](Strategy&) {
      const torch::NoGradGuard no_grad;
      model->w.add_(1);  // a merge function acts once
    });
    model->forward(torch::ones({1}));
  });
  EXPECT_EQ(weight_of(model), 0.5);
  auto other = strategy.make<OneWeight>();
  expect_error([&] { strategy.run([&] { my_id() == 0 ? model.update(halve) : other.update(halve); }); },
               Code::FailedPrecondition, errors::kDifferentCollective, {"different models"});
  EXPECT_EQ(weight_of(model), 0.5);
}

TEST_P(SilentMistakes, UpdateReachesTheBuffersOfAllReplicas) {
  auto net = strategy.make<SmallNet>();
  const auto mean_of = [&](int k) { return net.replica(static_cast<std::size_t>(k))->norm->running_mean; };
  strategy.run([&] { net->norm->running_var.fill_(my_id() + 2); });  // replicas have their own
  net.update([](SmallNet& once) { once.norm->running_mean.fill_(3); });
  for (int k = 0; k < replicas(); ++k) EXPECT_EQ(mean_of(k)[0].item<double>(), 3.0) << k;
  strategy.run([&] {
    net.update([](SmallNet& once) { once.norm->running_mean.add_(1); });
    EXPECT_EQ(net->norm->running_mean[0].item<double>(), 4.0);
    EXPECT_EQ(net->norm->running_var[0].item<double>(), my_id() + 2);  // which has not been changed
  });
}

TEST_P(SilentMistakes, AnOptimizerOfLibTorchOutsideOfRunIsWarnedAboutOnce) {
  auto net = strategy.make<OneWeight>();
  auto plain = std::make_unique<SGD>(net.parameters(), SGDOptions(0.1));
  const LoggedLines lines;
  const auto go_backward = [&] { net->forward(torch::ones({1})).sum().backward(); };
  strategy.run(go_backward);
  net.update([](OneWeight& once) { once.w.add_(1); });  // with gradients that were brought together by hand, say
  strategy.run(go_backward);
  EXPECT_EQ(lines.count("of replica 0 alone"), 0);
  for (int i = 0; i < 3; ++i) {
    plain->step();
    plain->zero_grad();
    strategy.run(go_backward);
  }
  EXPECT_EQ(lines.count("'w' was changed after a run that has left gradients"), 1);
}

TEST_P(SilentMistakes, AnOptimizerOfLibTorchInAMergeFunctionIsWarnedAboutOnce) {
  const auto warnings = [&](bool brought_together, int steps) {
    auto net = strategy.make<OneWeight>();
    SGD plain(net.parameters(), SGDOptions(0.1));
    const LoggedLines lines;
    for (int i = 0; i < steps; ++i) {
      strategy.run([&] {
        (net->forward(torch::ones({1})) * (my_id() + 1)).sum().backward();
        auto& gradient = net->w.mutable_grad();
        if (brought_together) gradient = get_replica_context().all_reduce(ReduceOp::Sum, gradient);
        get_replica_context().merge_call([&](Strategy&) { plain.step(); });
        net->zero_grad();
      });
    }
    return lines.count("'w' was changed in a merge function");
  };
  EXPECT_EQ(warnings(/*brought_together=*/false, 3), 1);
  EXPECT_EQ(warnings(/*brought_together=*/true, 3), 0) << "which is a step with the gradients of all replicas";
}

TEST_P(SilentMistakes, WeightsSetByHandAreNotTakenForAnOptimizerOfLibTorch) {
  auto net = strategy.make<OneWeight>();
  const LoggedLines lines;
  const auto without_gradients = [](auto change) {
    return [change] {
      const torch::NoGradGuard no_grad;
      change();
    };
  };
  const std::function<void()> changes[] = {
      without_gradients([&] {
        net.apply([](torch::nn::Module& part) {
          for (auto& p : part.parameters(/*recurse=*/false)) p.fill_(2);
        });
      }),
      without_gradients([&] { net.named_parameters()["w"].copy_(torch::full({1}, 3.0)); }),
      without_gradients([&] { net->w.fill_(4); }), [&] {
        net.to(at::kDouble);
        net.zero_grad();
      }};
  for (const auto& change : changes) {
    strategy.run([&] { net->forward(torch::ones({1})).sum().backward(); });
    change();
  }
  strategy.run([&] { net->forward(torch::ones({1})); });
  EXPECT_EQ(lines.count("was changed after a run that has left gradients"), 0);
}

TEST_P(SilentMistakes, AnOptimizerOfLibTorchBesideOneOfLockstepIsWarnedAbout) {
  auto net = strategy.make<SmallNet>();
  auto of_first = strategy.make_optimizer<SGD>(net, {{{"first."}, SGDOptions(0.1)}});
  SGD of_second(net->second->parameters(), SGDOptions(0.1));
  const Batch batch = random_batch(4);
  const LoggedLines lines;
  for (int i = 0; i < 3; ++i) {
    strategy.run([&] { of_first.minimize(net->forward(batch.rows).square().sum()); });
    EXPECT_EQ(lines.count("was changed after a run that has left gradients"), i > 1 ? 1 : 0);
    if (i > 0) of_second.step();
    of_second.zero_grad();
  }
  EXPECT_EQ(lines.count("'second.weight' was changed after a run that has left gradients"), 1);
}

TEST_P(SilentMistakes, BuffersOfAllReplicasAreReadOutsideOfRun) {
  MirroredStrategy one(on_cpus(1));
  for (Strategy* const of : {static_cast<Strategy*>(&strategy), static_cast<Strategy*>(&one)}) {
    auto net = of->make<SmallNet>();
    expect_error([&] { of->run([&] { net.named_buffers(); }); }, Code::FailedPrecondition, errors::kWrongContext,
                 {"named_buffers", "outside", "call model->named_buffers() inside run"});
    of->run([&] { EXPECT_EQ(net->named_buffers().size(), 3u); });
  }
}

TEST_P(SilentMistakes, MovedWeightsAreNoticedInEvaluationToo) {
  auto net = strategy.make<SmallNet>();
  auto untouched = strategy.make<SmallNet>();
  net->second->bias.set_data(torch::ones({4}));
  strategy.run([&] { return untouched->second->bias.sum(); });  // which has nothing to do with it
  expect_error([&] { strategy.run([&] { return net->second->bias.sum(); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"second.bias", "moved"});
  expect_error([&] { strategy.run([&] { untouched->second->to(at::kDouble); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"second.weight", "moved"});
}

TEST_P(SilentMistakes, PartsInOtherModesAreNoticedInEvaluationToo) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  net->drop->eval();  // of replica 0
  strategy.run([] {});
  expect_error([&] { strategy.run([&] { return net->forward(batch.rows); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"'drop'", "training mode on replica 1", "not on replica 0"});
  strategy.run([&] { net->drop->eval(); });  // the way out
  strategy.run([&] { return net->forward(batch.rows); });
}

TEST_P(SilentMistakes, PartsOfATeacherInOtherModesAreNoticedBesideAStep) {
  auto teacher = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  teacher->drop->eval();  // of replica 0
  const auto distill = [&] {
    const torch::Tensor taught = teacher->forward(batch.rows).detach();
    optimizer.minimize(model->forward(torch::ones({1})).sum() * taught.sum());
  };
  expect_error([&] { strategy.run(distill); }, Code::FailedPrecondition, errors::kWrongModule,
               {"'drop'", "training mode on replica 1"});
  strategy.run([] {});  // which has nothing to do with it
}

TEST_P(SilentMistakes, ARunThatIsRefusedAtItsEndDropsTheGradientsOfItsWindow) {
  auto teacher = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  optimizer.set_accumulate(2);
  const auto minimize = [&] { return optimizer.minimize(model->forward(torch::ones({1})).sum() / replicas()); };
  const std::pair<const char*, std::function<void()>> mistakes[] = {{"modes",
                                                                     [&] {
                                                                       teacher->forward(batch.rows);
                                                                       minimize();
                                                                     }},
                                                                    {"seed", [&] {
                                                                       if (my_id() == 0) torch::manual_seed(3);
                                                                       minimize();
                                                                     }}};
  teacher->drop->eval();  // of replica 0
  double weight = 1;
  for (const auto& [name, mistake] : mistakes) {
    EXPECT_EQ(error_of([&, &f = mistake] { strategy.run(f); }).code, Code::FailedPrecondition) << name;
    strategy.run([&] { EXPECT_FALSE(minimize()) << name; });
    EXPECT_EQ(weight_of(model), weight) << name;
    strategy.run([&] { EXPECT_TRUE(minimize()) << name; });
    EXPECT_EQ(weight_of(model), weight -= 2) << name << ": of two calls, and none of the run that was refused";
  }
}

TEST_P(SilentMistakes, ModesAreComparedOverARunInsideAMergeFunctionToo) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  net->drop->eval();  // of replica 0
  const auto run_inside = [&] { get_replica_context().merge_call([](Strategy& its) { its.run([] {}); }); };
  bool has_ended = false;
  expect_error(
      [&] {
        strategy.run([&] {
          net->forward(batch.rows);
          run_inside();
          if (my_id() == 0) has_ended = true;
        });
      },
      Code::FailedPrecondition, errors::kWrongModule, {"'drop'", "training mode on replica 1"});
  EXPECT_TRUE(has_ended) << "of the outer run, not of the inner one that has nothing to do with it";
}

TEST_P(SilentMistakes, UpdateReachesBuffersThatForwardChanges) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(8);
  net.update([&](SmallNet& once) { once.forward(batch.rows); });
  const auto mean_of = [&](int k) { return net.replica(static_cast<std::size_t>(k))->norm->running_mean; };
  EXPECT_NE(mean_of(0).abs().sum().item<double>(), 0.0);
  for (int k = 1; k < replicas(); ++k) EXPECT_TRUE(mean_of(k).equal(mean_of(0))) << k;
}

TEST_P(SilentMistakes, UpdateInsideRunIsNotTakenForAnotherOptimizer) {
  auto net = strategy.make<OneWeight>();
  const LoggedLines lines;
  for (int i = 0; i < 3; ++i) {
    strategy.run([&] {
      net->forward(torch::ones({1})).sum().backward();
      net.update([](OneWeight& once) { once.w.add_(1); });
    });
  }
  EXPECT_EQ(lines.count("was changed after a run that has left gradients"), 0);
}

TEST_P(SilentMistakes, ModelsMayShareAPartOrEndInsideRun) {
  int built = 0;
  auto twin = strategy.make([&] {
    auto net = std::make_shared<torch::nn::Module>("twin");
    net->register_module("part", model.replica(static_cast<std::size_t>(built++)));
    return net;
  });
  strategy.run([&] {
    twin->parameters();
    optimizer.minimize(model->forward(torch::ones({1})).sum());
  });
  std::optional<MirroredModule<OneWeight>> passing = strategy.make<OneWeight>();
  strategy.run([&] {
    (*passing)->forward(torch::ones({1}));
    get_replica_context().merge_call([&](Strategy&) { passing.reset(); });
  });
}

TEST_P(SilentMistakes, OldGraphsAreNoticedAfterUpdate) {
  EXPECT_ANY_THROW(strategy.run([&] {
    const auto loss = model->forward(model->w).sum();
    model.update([](OneWeight& net) { net.w.data().mul_(2); });
    loss.backward();
  }));
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradients at hand

TEST_P(SilentMistakes, ApplyGradientsDoesWhatMinimizeDoes) {
  const auto batch = random_batch(12);
  const auto train = [&](auto step) {
    MirroredStrategy of({.devices = cpus(replicas()), .seed = 3});
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
