#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/one_weight.h"
#include "tests/support/replicas.h"

// Each replica's share of the mean loss, however the rows are distributed.
namespace lockstep {
namespace {

using torch::optim::SGD;

class AverageLoss : public OneWeightTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, AverageLoss, testing::Values(2, 3));

TEST_P(AverageLoss, RefusesANumber) {
  expect_error([&] { strategy.run([&] { average_loss(torch::tensor(3.0)); }); }, Code::InvalidArgument, errors::kShape,
               {"one loss for each example", "reduction None"});
  expect_error([&] { strategy.run([&] { compute_average_loss(torch::tensor(3.0)); }); }, Code::InvalidArgument,
               errors::kShape, {"one loss for each example"});
}

TEST_P(AverageLoss, TakesIntegersAndWeights) {
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
    const auto small = at::full({3}, 100, at::kChar);  // int8 cannot hold its products
    EXPECT_DOUBLE_EQ(average_loss(small, {.sample_weight = at::full({3}, 2, at::kChar)}).item<double>(), 200 / r);
    const auto half = average_loss(at::full({3}, 0.5, at::kHalf), {.sample_weight = at::full({3}, 1e5)});
    EXPECT_NEAR(half.item<double>(), 5e4 / r, 32);
    EXPECT_EQ(half.scalar_type(), at::kHalf);
  });
}

/// Replica k gets k + 1 rows with its number.
PerReplica<at::Tensor> uneven(Strategy& strategy, int first = 1) {
  return strategy.values_from_function([&](const ValueContext& its) {
    const int k = its.replica_id_in_sync_group;
    return at::full({k + first}, k + 1.0);
  });
}

TEST_P(AverageLoss, OfHalfPrecisionHoldsWhatTheirSumDoesNot) {
  const auto batch = strategy.split(torch::full({4096}, 40.0, at::kHalf).requires_grad_());
  const auto shares = strategy.run([](const at::Tensor& losses) { return average_loss(losses); }, batch);
  EXPECT_EQ(shares[0].scalar_type(), at::kHalf);
  EXPECT_NEAR(strategy.reduce(ReduceOp::Sum, shares).item<double>(), 40.0, 0.05);
  const auto by_rule = strategy.run([](const at::Tensor& losses) { return compute_average_loss(losses); }, batch);
  EXPECT_NEAR(by_rule[0].item<double>(), 40.0 / replicas(), 0.05);
}

TEST_P(AverageLoss, CountsTheRowsOfAllReplicas) {
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

TEST_P(AverageLoss, MeetsNobodyWhereTheBatchTellsTheRows) {
  const auto rows = uneven(strategy);
  strategy.run(
      [&](const at::Tensor& x) {
        if (my_id() == 0) average_loss(x);  // a meeting would time out
      },
      rows);
}

TEST_P(AverageLoss, LossesOfSomeRowsOnlyNeedASize) {
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

TEST_P(AverageLoss, LossesOfSomeRowsInTwoCallsAreNotMixedUp) {
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

TEST_P(AverageLoss, RowsAreFoundInStructures) {
  using Named = std::map<std::string, at::Tensor>;
  const auto all = torch::ones({2 * replicas() + 1});
  const auto alone = [&](const auto& mine) {
    const auto& x = std::get<0>(mine);
    if (my_id() == 0) average_loss(x);  // a meeting would time out
  };
  strategy.run(alone, strategy.split(std::pair{all, all}));
  strategy.run([&](const Named& mine) { alone(std::tuple{mine.at("x")}); }, strategy.split(Named{{"x", all}}));
}

TEST_P(AverageLoss, RowsOfAStateAreNotTakenForThoseOfTheBatch) {
  const auto state = strategy.values_from_function([](const ValueContext&) { return at::zeros({2, 4, 5}); });
  for (const int rows :
       {4 * replicas(), 2 * replicas() - 1, replicas()}) {  // on some replicas as many as the state has
    const auto batch = strategy.split(torch::ones({rows}));
    const auto mean = [&](auto&& step, const auto&... args) {
      return strategy.reduce(ReduceOp::Sum, strategy.run(step, args...)).template item<float>();
    };
    const auto of_batch = [](const at::Tensor&, const at::Tensor& x) { return average_loss(x); };
    EXPECT_FLOAT_EQ(mean(of_batch, state, batch), 1) << rows;
    EXPECT_FLOAT_EQ(mean([](const at::Tensor& x, const at::Tensor&) { return average_loss(x); }, batch, state), 1);
    const auto both = strategy.values_from_function([&](const ValueContext& its) {
      return std::pair{state[0], batch[size_t(its.replica_id_in_sync_group)]};
    });
    EXPECT_FLOAT_EQ(mean([](const auto& mine) { return average_loss(mine.second); }, both), 1) << rows;
    const auto of_state = [](const at::Tensor& h, const at::Tensor&) { return average_loss(at::ones({h.size(0)})); };
    EXPECT_FLOAT_EQ(mean(of_state, state, batch), 1) << rows;
  }
}

/// One of two workers; the other is never contacted.
class OneOfTwo final : public Strategy {
  class Others final : public WorkerGroup {
   public:
    using WorkerGroup::WorkerGroup;
    Ticket submit(Channel, const Collective&, Deadline) override { return 0; }
    void wait(Ticket) override {}
    void set_place(std::string_view) override {}
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

TEST_P(AverageLoss, RowsOfOneWorkerAreNotTakenForThoseOfAll) {
  const auto parts = strategy.split(at::zeros({4}));
  {
    const OneOfTwo worker;
    const auto message = message_of<FailedPrecondition>([&] { global_rows(parts); });
    EXPECT_TRUE(contains(message, "this worker's rows")) << message;
    EXPECT_TRUE(contains(message, "inside run")) << message;
  }
  EXPECT_EQ(global_rows(parts), 4);
}

TEST_P(AverageLoss, AWindowNeedsTheSizeOfTheWindow) {
  optimizer.set_accumulate(2);
  expect_error([&] { strategy.run([&] { optimizer.minimize(average_loss(model->forward(torch::ones({2})))); }); },
               Code::FailedPrecondition, errors::kOptimizer, {"set_accumulate(2)", "average_loss(losses, size)"});
  expect_error([&] { strategy.run([&] { optimizer.backward(average_loss(model->forward(torch::ones({2})))); }); },
               Code::FailedPrecondition, errors::kOptimizer, {"where: average_loss"});
  for (int i = 0; i < 2; ++i) {
    strategy.run([&] { average_loss(torch::ones({2})); });  // does not concern the optimizer
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
TEST_P(AverageLoss, AMeanOfThisReplicasRowsIsWarnedOf) {
  using Loss = std::function<at::Tensor(const at::Tensor&)>;
  const auto truth = torch::zeros({4});
  const auto labels = torch::zeros({2}, at::kLong);
  const auto rows = [](const at::Tensor& y) { return y.reshape({2, 2}); };
  const std::tuple<const char*, bool, Loss> losses[] = {
      {"mean", true, [](const at::Tensor& y) { return y.mean(); }},
      {"mean over dimensions", true,
       [&](const at::Tensor& y) {
         return rows(y).mean(at::IntArrayRef{0, 1});
       }},
      {"a sum with a mean", true, [](const at::Tensor& y) { return average_loss(y) + y.square().mean(); }},
      {"minus a mean", true, [](const at::Tensor& y) { return -y.mean(); }},
      {"mse_loss", true, [&](const at::Tensor& y) { return at::mse_loss(y, truth); }},
      {"l1_loss", true, [&](const at::Tensor& y) { return at::l1_loss(y, truth); }},
      {"smooth_l1_loss", true, [&](const at::Tensor& y) { return at::smooth_l1_loss(y, truth); }},
      {"huber_loss", true, [&](const at::Tensor& y) { return at::huber_loss(y, truth); }},
      {"cross_entropy_loss", true, [&](const at::Tensor& y) { return at::cross_entropy_loss(rows(y), labels); }},
      {"binary_cross_entropy_with_logits", true,
       [&](const at::Tensor& y) { return at::binary_cross_entropy_with_logits(y, truth); }},
      {"a mean of another type", true, [](const at::Tensor& y) { return y.mean().to(at::kDouble).clone().squeeze(); }},
      {"a mean of averages", false,
       [](const at::Tensor& y) { return at::stack({average_loss(y), average_loss(y, 40)}).mean(); }},
      {"an average's mean over a dimension", false,
       [](const at::Tensor& y) { return average_loss(y).reshape({1}).mean(0); }},
      {"a product of means", false,
       [&](const at::Tensor& y) {
         return at::addmm(torch::zeros({1, 1}), rows(y).mean(0, true), torch::ones({2, 1})).reshape({});
       }},
      {"a mean on only one replica", false,
       [](const at::Tensor& y) {
         return get_replica_context().replica_id_in_sync_group() == 0 ? y.sum() + y.mean() : y.sum();
       }},
      {"mse_loss, summed", false, [&](const at::Tensor& y) { return at::mse_loss(y, truth, at::Reduction::Sum); }},
      {"cross_entropy_loss, summed", false,
       [&](const at::Tensor& y) { return at::cross_entropy_loss(rows(y), labels, {}, at::Reduction::Sum); }},
      {"average_loss of means of rows", false, [&](const at::Tensor& y) { return average_loss(rows(y).mean(1)); }},
      {"the mean of one number", false, [](const at::Tensor& y) { return average_loss(y).mean(); }},
      {"a mean that the program divides", false, [](const at::Tensor& y) { return y.mean() / 3; }},
      {"sums of sums", false,
       [](const at::Tensor& y) {
         at::Tensor sum = y.sum();
         for (int times = 0; times < 40; ++times) sum = sum + sum;
         return sum;
       }},
      {"sum", false, [](const at::Tensor& y) { return y.sum(); }}};
  for (const auto& [name, is_mean, loss] : losses) {
    auto of_loss = strategy.make_optimizer<SGD>(model, 0.0);
    const auto count = [&] {
      const LoggedLines lines;
      for (int steps = 0; steps < 2; ++steps)
        strategy.run([&, &loss_of = loss] { of_loss.minimize(loss_of(model->forward(torch::ones({4})))); });
      return lines.count("the loss is a mean over this replica's rows");
    };
    of_loss.set_reduce_op(ReduceOp::Mean);
    EXPECT_EQ(count(), 0) << name << ", averaged over replicas";
    of_loss.set_reduce_op(ReduceOp::Sum);
    EXPECT_EQ(count(), is_mean ? 1 : 0) << name;
  }
  // The operation of a step in parts is known only at its reduction.
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean}) {
    auto by_parts = strategy.make_optimizer<SGD>(model, 0.0);
    const LoggedLines lines;
    const auto step = [&](const Loss& loss) {
      strategy.run([&] {
        by_parts.backward(loss(model->forward(torch::ones({4}))));
        by_parts.reduce_gradients(op);
        by_parts.step();
      });
    };
    step([](const at::Tensor& y) { return y.mean(); });
    step([](const at::Tensor& y) { return average_loss(y); });
    EXPECT_EQ(lines.count("the loss is a mean over this replica's rows"), op == ReduceOp::Sum ? 1 : 0);
    EXPECT_EQ(lines.count("Leave the reduction at ReduceOp::Sum"), op == ReduceOp::Sum ? 0 : 1);
  }
  MirroredStrategy alone(on_devices(1));
  auto own = alone.make<OneWeight>();
  auto of_own = alone.make_optimizer<SGD>(own, 1.0);
  const LoggedLines lines;
  alone.run([&] { of_own.minimize(own->forward(torch::ones({4})).mean()); });
  EXPECT_EQ(lines.count("mean"), 0);
}

TEST_P(AverageLoss, SizesThatDifferBetweenReplicasAreWarnedOf) {
  const LoggedLines lines;
  const auto batch = strategy.split(torch::ones({3 * replicas() - 1}));
  const auto step = [&](const auto& size) {
    strategy.run(
        [&](const at::Tensor& x) {
          const at::Tensor losses = model->forward(x);
          optimizer.minimize(average_loss(losses, size(losses)));
        },
        batch);
  };
  step([&](const at::Tensor& losses) { return global_rows(losses); });
  step([](const at::Tensor&) { return 40; });
  strategy.run(
      [&](const at::Tensor& x) {
        const at::Tensor losses = model->forward(x);
        optimizer.minimize(average_loss(losses, 40));
        average_loss(losses.detach(), 2 * losses.size(0));  // for a log
      },
      batch);
  EXPECT_EQ(lines.count("was given the size"), 0);
  for (int steps = 0; steps < 2; ++steps) step([&](const at::Tensor& losses) { return replicas() * losses.size(0); });
  EXPECT_EQ(lines.count(str("was given the size ", 3 * replicas(), " on replica 0 and ", 2 * replicas(), " on replica ",
                            replicas() - 1)),
            1);
}

TEST_P(AverageLoss, AWindowIsOfMinimizeAlone) {
  optimizer.set_accumulate(3);
  const LoggedLines lines;
  const auto loss = [&] { return model->forward(torch::ones({1})).sum(); };
  const auto end_step = [&] {
    optimizer.reduce_gradients();
    optimizer.step();
  };
  const auto run = [&](const auto& step) {
    for (int runs = 0; runs < 3; ++runs) {
      strategy.run([&] {
        step();
        end_step();
      });
    }
    return lines.count("set_accumulate applies only to minimize");
  };
  EXPECT_EQ(run([&] { optimizer.minimize(loss()); }), 0) << "a window that ends early";
  const auto go_back_twice = [&] {
    optimizer.backward(loss());
    optimizer.backward(loss());
  };
  EXPECT_EQ(run(go_back_twice), 0) << "a window of the program's own";
  const auto full_window_and_one_more = [&] {
    for (int calls = 0; calls < 3; ++calls) optimizer.minimize(loss());
    optimizer.backward(loss());
  };
  EXPECT_EQ(run(full_window_and_one_more), 0) << "the last batch of an epoch";
  EXPECT_EQ(run([&] { loss().backward(); }), 1);
  EXPECT_EQ(run([&] { optimizer.backward(loss()); }), 1) << "once";
}

}  // namespace
}  // namespace lockstep
