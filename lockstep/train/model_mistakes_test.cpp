#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/callbacks.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"

// One clear error for each mistake.
namespace lockstep {
namespace {

struct Mistake {
  std::string name;
  std::function<void(Training&)> make;
  Code code;
  int number;
  std::vector<std::string> fragments;
};

train::Model other_model(Training& t, train::ModelOptions options) { return {t.net, t.optimizer, std::move(options)}; }

void fit_quietly(train::Model model, const data::Dataset<Batch>& batches = known_batches()) {
  model.fit(batches, {.verbose = train::Verbose::Silent});
}

at::Tensor mean_loss(const at::Tensor& output, const at::Tensor& target) { return loss_per_row(output, target).mean(); }

std::vector<Mistake> mistakes() {
  using enum Code;
  const auto rows = [](std::int64_t n) { return data::from_tensor_slices(known_rows(n)); };
  return {
      {"a loss that is a mean",
       [](Training& t) { fit_quietly(other_model(t, {.loss = mean_loss})); },
       InvalidArgument,
       errors::kShape,
       {"the loss must return one value for each row", "a mean or a sum already", "reduction None"}},
      {"a loss of other rows",
       [](Training& t) {
         fit_quietly(other_model(t, {.loss = [](const at::Tensor& a, const at::Tensor&) { return a.sum(0); }}));
       },
       InvalidArgument,
       errors::kShape,
       {"one value for each row", "[4]"}},
      {"no loss",
       [](Training& t) { fit_quietly(other_model(t, {})); },
       FailedPrecondition,
       errors::kBadOption,
       {"needs a loss", "set_train_step"}},
      {"a metric of the wrong shape",
       [](Training& t) {
         fit_quietly(other_model(t, {.loss = train::losses::cross_entropy(), .metrics = {train::metrics::mse()}}));
       },
       InvalidArgument,
       errors::kShape,
       {"\"mse\"", "same shape"}},
      {"two metrics of one name",
       [](Training& t) {
         fit_quietly(other_model(t, {.loss = train::losses::cross_entropy(),
                                     .metrics = {train::metrics::accuracy(), train::metrics::accuracy({.top_k = 2})}}));
       },
       InvalidArgument,
       errors::kBadOption,
       {"two metrics", "\"accuracy\""}},
      {"a metric called loss",
       [](Training& t) {
         fit_quietly(other_model(
             t, {.loss = train::losses::cross_entropy(), .metrics = {train::metrics::accuracy({.name = "loss"})}}));
       },
       InvalidArgument,
       errors::kBadOption,
       {"\"loss\""}},
      {"an empty dataset",
       [=](Training& t) { t.fit(rows(5).take(0).batch(2), {}); },
       InvalidArgument,
       errors::kBadOption,
       {"the dataset to train on has no batches", "epoch 1 of 1"}},
      {"a batch that is dropped",
       [=](Training& t) { t.fit(rows(5).batch(10, {.drop_remainder = true}), {.steps_per_epoch = 3}); },
       InvalidArgument,
       errors::kBadOption,
       {"no batches", "drop_remainder"}},
      {"validation without batches",
       [=](Training& t) { t.fit(known_batches(), {.validation = rows(5).take(0).batch(2)}); },
       InvalidArgument,
       errors::kBadOption,
       {"the dataset for validation has no batches"}},
      {"evaluation without batches",
       [=](Training& t) { t.model.evaluate(rows(5).take(0).batch(2)); },
       InvalidArgument,
       errors::kBadOption,
       {"validation has no batches"}},
      {"fit inside run",
       [](Training& t) { t.strategy.run([&] { t.fit(known_batches(), {}); }); },
       FailedPrecondition,
       errors::kWrongContext,
       {"fit belongs outside of the function given to strategy.run"}},
      {"evaluate inside run",
       [](Training& t) { t.strategy.run([&] { t.model.evaluate(known_batches()); }); },
       FailedPrecondition,
       errors::kWrongContext,
       {"evaluate belongs outside"}},
      {"negative epochs",
       [](Training& t) { t.fit(known_batches(), {.epochs = -1}); },
       InvalidArgument,
       errors::kBadOption,
       {"epochs must be >= 0, got -1"}},
      {"no steps per epoch",
       [](Training& t) { t.fit(known_batches(), {.steps_per_epoch = 0}); },
       InvalidArgument,
       errors::kBadOption,
       {"steps_per_epoch must be >= 1, got 0"}},
      {"no validation interval",
       [](Training& t) { t.fit(known_batches(), {.validation = known_batches(), .validation_every = 0}); },
       InvalidArgument,
       errors::kBadOption,
       {"validation_every must be >= 1, got 0"}},
      {"one callback twice",
       [](Training& t) {
         t.fit(known_batches(), {.callbacks = {train::terminate_on_nan(), train::terminate_on_nan()}});
       },
       InvalidArgument,
       errors::kBadOption,
       {"two callbacks", "\"terminate_on_nan\""}},
      {"a callback that is null",
       [](Training& t) { t.fit(known_batches(), {.callbacks = {nullptr}}); },
       InvalidArgument,
       errors::kBadOption,
       {"null"}},
      {"an unknown value",
       [](Training& t) { t.fit(known_batches(), {.callbacks = {train::early_stopping()}}); },
       InvalidArgument,
       errors::kBadOption,
       {"monitors \"val_loss\"", "it has accuracy, loss", "callback \"early_stopping\""}},
      {"a decision that nobody looks at",
       [](Training& t) {
         const auto stop = [](const train::Training&) { return train::Decision{.stop = true}; };
         t.fit(known_batches(), {.callbacks = {train::lambda({.batch_ends = stop})}});
       },
       FailedPrecondition,
       errors::kWrongContext,
       {"decides_in_batches", "\"lambda\"", "got stop"}},
      {"a batch without a target",
       [](Training& t) {
         t.model.fit(data::from_tensor_slices(known_rows(9).rows).batch(3), {.verbose = train::Verbose::Silent});
       },
       InvalidArgument,
       errors::kStructure,
       {"an input and a target", "set_train_step"}},
      {"a step for other batches",
       [](Training& t) {
         t.model.set_train_step([](const at::Tensor&) {});
         t.fit(known_batches(), {});
       },
       InvalidArgument,
       errors::kStructure,
       {"a different type of batch than the dataset has"}},
      {"other names on replicas",
       [](Training& t) {
         t.model.set_train_step([](const Batch& mine) {
           return train::StepLogs{{my_id() == 0 ? "a" : "b", mine.rows}};
         });
         t.fit(known_batches(), {});
       },
       InvalidArgument,
       errors::kStructure,
       {"replica 1 has logged b, and replica 0 a"}},
      {"an unknown name in the history",
       [](Training& t) { static_cast<void>(t.fit(known_batches(), {}).last("val_loss")); },
       NotFound,
       errors::kBadOption,
       {"the history has no \"val_loss\"", "it has accuracy, loss"}},
  };
}

TEST(FitMistakes, AreOneClearErrorEach) {
  for (const Mistake& mistake : mistakes()) {
    Training t(2);
    expect_error([&] { mistake.make(t); }, mistake.code, mistake.number, mistake.fragments, mistake.name);
  }
}

TEST(FitMistakes, ACallbackThatThrowsEndsFitWithItsException) {
  Training t(2);
  const auto fail = [](const train::Training& its) -> train::Decision {
    if (its.step == 2) throw std::runtime_error("the disk is full");
    return {};
  };
  EXPECT_EQ(message_of<std::runtime_error>(
                [&] { t.fit(known_batches(), {.callbacks = {train::lambda({.batch_ends = fail})}}); }),
            "the disk is full");
  EXPECT_EQ(t.optimizer.steps(), 2);
  EXPECT_EQ(t.fit(known_batches(), {}).epochs.size(), 1u) << "fit can be called again";
}

TEST(FitMistakes, AnExceptionInTheModelLeavesTheModesAsTheyWere) {
  Training t(2);
  train::Model model(t.net, t.optimizer, {.loss = [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
                       throw std::runtime_error("no loss today");
                     }});
  EXPECT_THROW(model.evaluate(known_batches()), std::runtime_error);
  EXPECT_TRUE(t.net->is_training());
}

}  // namespace
}  // namespace lockstep
