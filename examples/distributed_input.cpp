// One dataset for all replicas: global batches go in, and every replica gets its piece. Shows how a batch is cut, what
// happens at the end of the data and after an error, pipelines per replica, batches from a DataLoader, a report of the
// bottleneck, and how to resume after an interruption. `--device gpu` puts the replicas on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "devices.h"

namespace ls = lockstep;

namespace {

int failures = 0;

std::string rows(const ls::PerReplica<torch::Tensor>& step) {
  std::ostringstream text;
  for (const torch::Tensor& mine : step) {
    text << '[';
    for (std::int64_t i = 0; i < mine.size(0); ++i) text << (i ? " " : "") << mine[i].item<std::int64_t>();
    text << "] ";
  }
  return text.str();
}

void expect(const char* what, const std::string& got, const std::string& wanted) {
  std::printf("%-34s %s\n", what, got.c_str());
  if (got == wanted) return;
  std::printf("  expected %s\n", wanted.c_str());
  ++failures;
}

}  // namespace

int main(int argc, char** argv) {
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 4), .seed = 1});

  // A dataset of global batches: 26 rows in batches of 10.
  auto batches = strategy.distribute(ls::data::range(26).batch(10));
  std::printf("%s", batches.plan().c_str());
  const char* expected[] = {"[0 1 2] [3 4 5] [6 7] [8 9] ", "[10 11 12] [13 14 15] [16 17] [18 19] ",
                            "[20 21] [22 23] [24] [25] "};
  int step = 0;
  for (const auto& batch : batches) expect("a step", rows(batch), expected[step++]);

  // Cut and divided among workers as in TensorFlow.
  auto by_worker = strategy.distribute(ls::data::range(26).batch(10), {.assignment = ls::Assignment::TensorFlow});
  expect("TensorFlow's assignment", rows(by_worker.iterator().get_next()), "[0 1 2] [3 4 5] [6 7 8] [9] ");

  // A replica without rows gets an empty batch, so sums and row-wise means over all replicas stay exact.
  double sum = 0;
  for (const auto& batch : batches) {
    auto sums = strategy.run([](const torch::Tensor& mine) { return mine.sum(); }, batch);
    sum += strategy.reduce(ls::ReduceOp::Sum, sums).item<double>();
  }
  expect("sum of all rows", std::to_string(static_cast<int>(sum)), "325");

  // With an iterator of your own you can save its position, a few numbers, in a checkpoint.
  auto steps = batches.iterator();
  steps.get_next();
  const std::string saved = steps.state().serialize();
  auto resumed = batches.iterator();
  resumed.load_state(ls::data::IteratorState::parse(saved));
  expect("after a restart", rows(resumed.get_next()), expected[1]);

  // A function that throws costs a step. Catch the exception and continue with the next one.
  auto fragile = strategy.distribute(ls::data::range(26)
                                         .map([](torch::Tensor x) {
                                           if (x.item<std::int64_t>() == 13) throw std::runtime_error("unlucky");
                                           return x;
                                         })
                                         .batch(10));
  auto lucky = fragile.iterator();
  lucky.get_next();
  try {
    lucky.get_next();
  } catch (const std::runtime_error& error) {
    std::printf("the second step: %s\n", error.what());
  }
  expect("after the failure", rows(lucky.get_next()), expected[2]);

  // Where the time goes: a line for each stage, and a hint.
  const auto meter = std::make_shared<ls::data::StageMeter>();
  for (auto measured = batches.iterator({.meter = meter}); auto batch = measured.next();) {
    strategy.run([](const torch::Tensor& mine) { return mine.sum(); }, *batch);
  }
  std::printf("%s", to_string(meter->report()).c_str());
  expect("rows in the report", std::to_string(meter->report().stages.front().rows), "26");

  // Your own pipelines: each batch is for one replica, and nothing is split.
  auto own = strategy.distribute_from_function(
      [](const ls::InputContext& context) { return ls::data::range(8).batch(context.get_per_replica_batch_size(8)); });
  expect("from a function", rows(own.iterator().get_next()), "[0 1] [2 3] [4 5] [6 7] ");

  auto each = strategy.distribute_from_function(
      [](const ls::InputContext& context) {
        return ls::data::range(2)
            .map([id = context.input_pipeline_id](torch::Tensor x) { return x + 10 * id; })
            .batch(2);
      },
      {.replication_mode = ls::ReplicationMode::PerReplica});
  expect("one pipeline for each replica", rows(each.iterator().get_next()), "[0 1] [10 11] [20 21] [30 31] ");

  // Batches from a DataLoader that the program already has.
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      torch::data::datasets::TensorDataset(torch::arange(26))
          .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
      10);
  std::int64_t seen = 0;
  for (auto& batch : *loader) {
    auto parts = strategy.split(batch);  // a PerReplica of torch::data::TensorExample
    strategy.run([](const torch::data::TensorExample& mine) { return mine.data.sum(); }, parts);
    seen += ls::global_rows(parts);  // the rows of all parts together
  }
  expect("rows of a DataLoader", std::to_string(seen), "26");

  // run can check its arguments against a spec.
  auto numbers = strategy.distribute(
      strategy.make_numpy_dataset(torch::arange(32).view({16, 2})).batch(8, {.drop_remainder = true}));
  for (const auto& batch : numbers) {
    strategy.run(
        numbers.element_spec(), [](const torch::Tensor& mine) { return mine.sum(); }, batch);
  }
  expect("element_spec", ls::to_string(numbers.element_spec()), "PerReplica x 4 of int64[2, 2]");
  return failures == 0 ? 0 : 1;
}
