#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>

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

// Weights, buffers and modes changed by a program: rejected, warned about, or applied to every replica.
namespace lockstep {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

class ChangedWeights : public OneWeightTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, ChangedWeights, testing::Values(2, 3));

TEST_P(ChangedWeights, WeightsChangedInsideRunAreRefused) {
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
         if (my_id() == 0) params[0].mul_(0.5);  // one at a time, to avoid a race in the test
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
  model->w.fill_(1);  // outside of run it is changed once, which is allowed
  strategy.run([&] { model->forward(torch::ones({1})); });
}

template <class Optimizer>
void expect_foreign_optimizer_is_refused(Strategy& strategy, MirroredModule<OneWeight>& model) {
  Optimizer plain(model.parameters(), 0.5);
  expect_error(
      [&] {
        strategy.run([&] {
          const bool mine = my_id() == 0;  // all replicas at once would be a race in the test itself
          if (mine) plain.zero_grad();
          model->forward(torch::ones({1})).sum().backward();
          if (mine) plain.step();
        });
      },
      Code::FailedPrecondition, errors::kWrongModule, {"'w' was changed inside run", "make_optimizer"});
}

TEST_P(ChangedWeights, AnOptimizerOfLibTorchInsideRunIsRefused) {
  expect_foreign_optimizer_is_refused<SGD>(strategy, model);  // writes through data()
  expect_foreign_optimizer_is_refused<torch::optim::Adam>(strategy, model);
}

TEST_P(ChangedWeights, UpdateChangesWeightsOnce) {
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
      model->w.add_(1);  // a merge function runs once
    });
    model->forward(torch::ones({1}));
  });
  EXPECT_EQ(weight_of(model), 0.5);
  auto other = strategy.make<OneWeight>();
  expect_error([&] { strategy.run([&] { my_id() == 0 ? model.update(halve) : other.update(halve); }); },
               Code::FailedPrecondition, errors::kDifferentCollective, {"different models"});
  EXPECT_EQ(weight_of(model), 0.5);
}

TEST_P(ChangedWeights, BuffersOfReplicaZeroAloneAreWarnedAboutOnce) {
  constexpr const char* kWarning = "buffer 'norm.running_var' was changed outside of run only on replica 0";
  const auto train = [&](MirroredModule<SmallNet>& net) { strategy.run([&] { net->forward(torch::ones({3, 9})); }); };
  const auto set_all = [&](MirroredModule<SmallNet>& net) {
    for (int k = 0; k < replicas(); ++k) net.replica(static_cast<std::size_t>(k))->norm->running_var.fill_(2);
  };
  const LoggedLines lines;
  auto net = strategy.make<SmallNet>();
  train(net);
  net.update([](SmallNet& once) { once.norm->running_var.fill_(2); });
  train(net);
  set_all(net);
  train(net);
  net.synchronize_buffers();
  strategy.run([&] {
    if (my_id() == 0) net->norm->running_var.fill_(2);  // inside, where each replica has its own
  });
  EXPECT_EQ(lines.count(kWarning), 0);
  for (int i = 0; i < 2; ++i) {
    net->norm->running_var.fill_(3);
    train(net);
  }
  EXPECT_EQ(lines.count(kWarning), 1);
  auto fresh = strategy.make<SmallNet>();
  fresh->norm->running_var.fill_(3);
  train(fresh);
  EXPECT_EQ(lines.count(kWarning), 2) << "before the first run";
}

TEST_P(ChangedWeights, UpdateReachesTheBuffersOfAllReplicas) {
  auto net = strategy.make<SmallNet>();
  const auto mean_of = [&](int k) { return net.replica(static_cast<std::size_t>(k))->norm->running_mean; };
  strategy.run([&] { net->norm->running_var.fill_(my_id() + 2); });  // replicas have their own
  net.update([](SmallNet& once) { once.norm->running_mean.fill_(3); });
  for (int k = 0; k < replicas(); ++k) EXPECT_EQ(mean_of(k)[0].item<double>(), 3.0) << k;
  strategy.run([&] {
    net.update([](SmallNet& once) { once.norm->running_mean.add_(1); });
    EXPECT_EQ(net->norm->running_mean[0].item<double>(), 4.0);
    EXPECT_EQ(net->norm->running_var[0].item<double>(), my_id() + 2);  // which was not changed
  });
}

TEST_P(ChangedWeights, AnOptimizerOfLibTorchOutsideOfRunIsWarnedAboutOnce) {
  auto net = strategy.make<OneWeight>();
  auto plain = std::make_unique<SGD>(net.parameters(), SGDOptions(0.1));
  const LoggedLines lines;
  const auto go_backward = [&] { net->forward(torch::ones({1})).sum().backward(); };
  strategy.run(go_backward);
  net.update([](OneWeight& once) { once.w.add_(1); });  // for example with manually reduced gradients
  strategy.run(go_backward);
  EXPECT_EQ(lines.count("sees only replica 0's"), 0);
  for (int i = 0; i < 3; ++i) {
    plain->step();
    plain->zero_grad();
    strategy.run(go_backward);
  }
  EXPECT_EQ(lines.count("'w' was changed after a run that has left gradients"), 1);
}

TEST_P(ChangedWeights, AnOptimizerOfLibTorchInAMergeFunctionIsWarnedAboutOnce) {
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

TEST_P(ChangedWeights, WeightsSetByHandAreNotTakenForAnOptimizerOfLibTorch) {
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

TEST_P(ChangedWeights, AnOptimizerOfLibTorchBesideOneOfLockstepIsWarnedAbout) {
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

TEST_P(ChangedWeights, BuffersOfAllReplicasAreReadOutsideOfRun) {
  MirroredStrategy one(on_devices(1));
  for (Strategy* const of : {static_cast<Strategy*>(&strategy), static_cast<Strategy*>(&one)}) {
    auto net = of->make<SmallNet>();
    expect_error([&] { of->run([&] { net.named_buffers(); }); }, Code::FailedPrecondition, errors::kWrongContext,
                 {"named_buffers", "outside", "call model->named_buffers() inside run"});
    of->run([&] { EXPECT_EQ(net->named_buffers().size(), 3u); });
  }
}

TEST_P(ChangedWeights, MovedWeightsAreNoticedInEvaluationToo) {
  auto net = strategy.make<SmallNet>();
  auto untouched = strategy.make<SmallNet>();
  net->second->bias.set_data(torch::ones({4}));
  strategy.run([&] { return untouched->second->bias.sum(); });  // unrelated to it
  expect_error([&] { strategy.run([&] { return net->second->bias.sum(); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"second.bias", "moved"});
  expect_error([&] { strategy.run([&] { untouched->second->to(at::kDouble); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"second.weight", "moved"});
}

TEST_P(ChangedWeights, PartsInOtherModesAreNoticedInEvaluationToo) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  net->drop->eval();  // replica 0's
  strategy.run([] {});
  expect_error([&] { strategy.run([&] { return net->forward(batch.rows); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"'drop'", "training mode on replica 1", "not on replica 0"});
  strategy.run([&] { net->drop->eval(); });  // the way to fix it
  strategy.run([&] { return net->forward(batch.rows); });
}

TEST_P(ChangedWeights, PartsOfATeacherInOtherModesAreNoticedBesideAStep) {
  auto teacher = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  teacher->drop->eval();  // replica 0's
  const auto distill = [&] {
    const torch::Tensor taught = teacher->forward(batch.rows).detach();
    optimizer.minimize(model->forward(torch::ones({1})).sum() * taught.sum());
  };
  expect_error([&] { strategy.run(distill); }, Code::FailedPrecondition, errors::kWrongModule,
               {"'drop'", "training mode on replica 1"});
  strategy.run([] {});  // unrelated to it
}

TEST_P(ChangedWeights, ARunThatIsRefusedAtItsEndDropsTheGradientsOfItsWindow) {
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
  teacher->drop->eval();  // replica 0's
  double weight = 1;
  for (const auto& [name, mistake] : mistakes) {
    EXPECT_EQ(error_of([&, &f = mistake] { strategy.run(f); }).code, Code::FailedPrecondition) << name;
    strategy.run([&] { EXPECT_FALSE(minimize()) << name; });
    EXPECT_EQ(weight_of(model), weight) << name;
    strategy.run([&] { EXPECT_TRUE(minimize()) << name; });
    EXPECT_EQ(weight_of(model), weight -= 2) << name << ": of two calls, and none of the run that was refused";
  }
}

TEST_P(ChangedWeights, AWeightReplacedOnOneReplicaIsRefused) {
  auto net = strategy.make<SmallNet>();
  auto trainer = strategy.make_optimizer<SGD>(net, 0.1);
  const auto train = [&] { strategy.run([&] { trainer.minimize(net->forward(torch::ones({2, 9})).sum()); }); };
  const auto evaluate = [&] { strategy.run([&] { net->forward(torch::ones({2, 9})); }); };
  train();
  const at::Tensor before = net.named_parameters()["second.weight"].detach().clone();
  const at::Tensor own = net->second->weight;
  net->second->weight = torch::ones({4, 24});
  for (const auto& use : {std::function<void()>(train), std::function<void()>(evaluate)}) {
    expect_error(use, Code::FailedPrecondition, errors::kWrongModule,
                 {"'second.weight' was replaced by another tensor on replica 0", "model.update"}, "replaced");
  }
  EXPECT_TRUE(same_bits(net.named_parameters()["second.weight"], before)) << "no step was made";
  net->second->weight = own;
  train();
}

TEST_P(ChangedWeights, EvaluationWithStatisticsOfSingleReplicasIsWarnedAboutOnce) {
  auto net = strategy.make<SmallNet>();
  LoggedLines log;
  const auto forward = [&] {
    strategy.run([&] { net->forward(torch::full({2, 9}, 1.0 + my_id()) * torch::arange(2).view({2, 1})); });
  };
  forward();
  EXPECT_TRUE(log.lines().empty()) << "in training mode each replica has its own";
  net.synchronize_buffers();
  net.eval();
  forward();
  EXPECT_TRUE(log.lines().empty()) << log.lines()[0];
  net.train();
  forward();
  net.eval();
  for (int i = 0; i < 2; ++i) forward();
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].find("model.synchronize_buffers()"), std::string::npos) << log.lines()[0];
}

TEST_P(ChangedWeights, ModesAreComparedOverARunInsideAMergeFunctionToo) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(4);
  net->drop->eval();  // replica 0's
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

TEST_P(ChangedWeights, UpdateReachesBuffersThatForwardChanges) {
  auto net = strategy.make<SmallNet>();
  const Batch batch = random_batch(8);
  net.update([&](SmallNet& once) { once.forward(batch.rows); });
  const auto mean_of = [&](int k) { return net.replica(static_cast<std::size_t>(k))->norm->running_mean; };
  EXPECT_NE(mean_of(0).abs().sum().item<double>(), 0.0);
  for (int k = 1; k < replicas(); ++k) EXPECT_TRUE(mean_of(k).equal(mean_of(0))) << k;
}

TEST_P(ChangedWeights, UpdateInsideRunIsNotTakenForAnotherOptimizer) {
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

TEST_P(ChangedWeights, ModelsMayShareAPartOrEndInsideRun) {
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

TEST_P(ChangedWeights, OldGraphsAreNoticedAfterUpdate) {
  EXPECT_ANY_THROW(strategy.run([&] {
    const auto loss = model->forward(model->w).sum();
    model.update([](OneWeight& net) { net.w.data().mul_(2); });
    loss.backward();
  }));
}
}  // namespace
}  // namespace lockstep
