#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "lockstep/compat.h"
#include "lockstep/data/files/files.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

namespace v1 = compat::v1;

std::int64_t total(const at::Tensor& value) { return value.sum().item().toLong(); }

struct CompatInput : testing::Test {
  v1::MirroredStrategy strategy{cpus(2)};
};

// names: make_dataset_iterator, InputIterator, initialize, get_next
TEST_F(CompatInput, DatasetIteratorSplitsBatchesAndStartsAgain) {
  v1::InputIterator<at::Tensor> iterator = strategy.make_dataset_iterator(data::range(8).batch(4));
  EXPECT_EQ(total(iterator.get_next()[1]), 5);  // not initialized before
  EXPECT_EQ(total(iterator.get_next()[0]), 9);
  const auto end = error_of([&] { iterator.get_next(); });
  EXPECT_EQ(end.code, Code::OutOfRange);
  EXPECT_EQ(error_of([&] { iterator.get_next(); }).code, Code::OutOfRange);
  iterator.initialize();
  const auto sums = strategy.extended().call_for_each_replica(total, std::tuple{iterator.get_next()});
  EXPECT_EQ(sums[0], 1);
  const auto inside = error_of([&] { strategy.run([&] { iterator.get_next(); }); });
  EXPECT_TRUE(contains(inside.text, "get_next was called inside a replica")) << inside.text;
}

using Rows = std::vector<std::vector<std::int64_t>>;

Rows rows_of(const PerReplica<at::Tensor>& step) {
  Rows rows;
  for (const at::Tensor& mine : step) {
    rows.emplace_back();
    for (std::int64_t i = 0; i < mine.size(0); ++i) rows.back().push_back(mine[i].item<std::int64_t>());
  }
  return rows;
}

TEST_F(CompatInput, DatasetIteratorLosesNoRowOfAShortLastBatch) {
  const TemporaryFolder folder;
  const std::string file = folder.file("lines", "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
  const auto number_in = [](const std::string& line) { return at::full({}, std::stoll(line), at::kLong); };
  const auto lines = data::text_line_dataset(data::from_tensor_slices(std::vector{file})).map(number_in);
  const Rows cut_by_ceil[] = {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8}, {}}};
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off, AutoShardPolicy::File,
                            AutoShardPolicy::Hint}) {
    for (const auto& source : {data::range(9), data::from_tensor_slices(at::arange(9)), lines}) {
      auto iterator = strategy.make_dataset_iterator(source.batch(4).with_options({policy}));
      for (const Rows& step : cut_by_ceil) EXPECT_EQ(rows_of(iterator.get_next()), step) << to_string(policy);
      EXPECT_EQ(error_of([&] { iterator.get_next(); }).code, Code::OutOfRange);
    }
  }
}

TEST_F(CompatInput, ABatchThatCannotBeDividedPointsToInputFunctions) {
  const auto error = error_of([&] { strategy.make_dataset_iterator(data::range(8)).get_next(); });
  EXPECT_EQ(error.code, Code::InvalidArgument);
  EXPECT_TRUE(contains(error.parts.help, "make_input_fn_iterator")) << error.text;
}

// names: experimental_run
TEST_F(CompatInput, ExperimentalRunTakesTheNextValue) {
  auto iterator = strategy.make_dataset_iterator(data::range(8).batch(4));
  EXPECT_EQ(strategy.experimental_run(total, iterator)[1], 5);
  EXPECT_EQ(strategy.experimental_run(total, iterator)[1], 13);
  EXPECT_EQ(strategy.experimental_run([] { return 7; })[1], 7);
  EXPECT_EQ(strategy.experimental_run([] { return 7; }, v1::None)[0], 7);
}

// names: experimental_run_steps_on_iterator, MultiStepContext
TEST_F(CompatInput, RunsStepsOnAnIterator) {
  auto iterator = strategy.make_dataset_iterator(data::range(12).batch(2));
  const auto step = [&](contrib::MultiStepContext& context, const PerReplica<at::Tensor>& rows) {
    EXPECT_TRUE(v1::in_cross_replica_context());
    context.set_last_step_output("sum", rows, v1::ReduceOp::SUM);
    context.set_last_step_output("rows", rows);
    strategy.run([&](const at::Tensor& mine) { context.set_last_step_output("mean", mine, v1::ReduceOp::MEAN); },
                 std::tuple{rows});
    context.set_non_tensor_output("text", "hello");
  };
  auto context = strategy.extended().experimental_run_steps_on_iterator(step, iterator, 2);
  EXPECT_EQ(total(context.last_step_outputs().at("sum")), 5);
  EXPECT_EQ(total(context.last_step_outputs().at("rows").values()[1]), 3);
  EXPECT_EQ(context.last_step_outputs().at("mean").tensor().item().toDouble(), 2.5);
  EXPECT_EQ(std::any_cast<std::string>(context.non_tensor_outputs().at("text")), "hello");
  context.run_op();
  EXPECT_EQ(total(context.last_step_outputs().at("sum")), 13);
  EXPECT_EQ(error_of([&] { strategy.extended().experimental_run_steps_on_iterator(step, iterator, 3); }).code,
            Code::OutOfRange);
  const auto inside =
      error_of([&] { strategy.run([&] { strategy.extended().experimental_run_steps_on_iterator(step, iterator); }); });
  EXPECT_TRUE(contains(inside.text, "experimental_run_steps_on_iterator")) << inside.text;
}

// names: make_input_fn_iterator, InputContext, InputContext.get_per_replica_batch_size, num_input_pipelines,
// names: input_pipeline_id, num_replicas_in_sync, InputReplicationMode
TEST_F(CompatInput, InputFunctionsGiveBatchesOfReplicas) {
  const auto input_fn = [&](const v1::InputContext& context) {
    EXPECT_TRUE(v1::in_cross_replica_context());
    EXPECT_EQ(context.num_input_pipelines, 1);
    EXPECT_EQ(context.input_pipeline_id, 0);
    EXPECT_EQ(context.num_replicas_in_sync, 2);
    return data::range(7).batch(context.get_per_replica_batch_size(4));
  };
  auto iterator = strategy.make_input_fn_iterator(input_fn);
  EXPECT_EQ(error_of([&] { strategy.core().run(iterator.element_spec(), total, at::ones({2})); }).number,
            errors::kSignature);
  iterator.get_next();
  iterator.initializer();
  EXPECT_EQ(total(iterator.get_next()[1]), 5);
  EXPECT_EQ(iterator.get_next()[1].numel(), 1);
  EXPECT_EQ(error_of([&] { iterator.get_next(); }).code, Code::OutOfRange);
  const auto error =
      error_of([&] { strategy.make_input_fn_iterator(input_fn, v1::InputReplicationMode::PER_REPLICA); });
  EXPECT_TRUE(contains(error.text, "replication_mode must be PER_WORKER, got PER_REPLICA")) << error.text;
  EXPECT_FALSE(error.parts.help.empty());
}

TEST_F(CompatInput, InputFunctionsMayGiveCallables) {
  auto iterator =
      strategy.make_input_fn_iterator([](const v1::InputContext&) { return [k = 0]() mutable { return ++k; }; });
  iterator.initialize();
  EXPECT_EQ(iterator.get_next()[1], 2);
  EXPECT_EQ(strategy.experimental_run([](int k) { return 10 * k; }, iterator)[1], 40);
  error_of([&] { strategy.run([&] { iterator.get_next(); }); });
  const auto none = [](const v1::InputContext&) { return std::function<int()>(); };
  EXPECT_TRUE(contains(error_of([&] { strategy.make_input_fn_iterator(none); }).text, "input_fn must return"));
}

// names: experimental_distribute_dataset, element_spec, input_signature (element_spec)
TEST_F(CompatInput, DistributesDatasets) {
  const auto batches = strategy.experimental_distribute_dataset(data::range(8).batch(4));
  std::int64_t sum = 0;
  for (const auto& batch : batches) sum += strategy.reduce("sum", strategy.run(total, std::tuple{batch}));
  EXPECT_EQ(sum, 28);
  const auto wrong = [&] { strategy.core().run(batches.element_spec(), total, at::ones({2})); };
  EXPECT_EQ(error_of(wrong).number, errors::kSignature);
}

// names: experimental_distribute_datasets_from_function
TEST_F(CompatInput, DistributesDatasetsOfAFunction) {
  const auto batches = strategy.experimental_distribute_datasets_from_function([](const v1::InputContext& context) {
    return data::range(8).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2);
  });
  EXPECT_EQ(total(batches.iterator().get_next()[1]), 5);
}

// names: DistributeOptions.auto_shard, DistributeOptions.auto_shard_policy
TEST_F(CompatInput, OptionsSayHowWorkersShare) {
  v1::Options options;
  EXPECT_EQ(data::DatasetOptions(options).auto_shard_policy, AutoShardPolicy::Auto);
  options.experimental_distribute.auto_shard_policy = v1::AutoShardPolicy::DATA;
  EXPECT_EQ(data::DatasetOptions(options).auto_shard_policy, AutoShardPolicy::Data);
  options.experimental_distribute.auto_shard = false;
  EXPECT_EQ(data::DatasetOptions(options).auto_shard_policy, AutoShardPolicy::Off);
  const auto batches = strategy.experimental_distribute_dataset(data::range(6).batch(4).with_options(options));
  EXPECT_EQ(batches.iterator().get_next()[0].numel(), 2);
}

// names: experimental_make_numpy_dataset
TEST_F(CompatInput, NumpyDatasetsHaveRowsAndIgnoreTheSession) {
  struct Session {};
  const auto ones = strategy.experimental_make_numpy_dataset(at::ones({10}), Session());
  EXPECT_EQ(ones.cardinality().value(), 10);
  const auto pairs = strategy.experimental_make_numpy_dataset(std::pair{at::arange(4), at::arange(4, 8)});
  const auto batches = strategy.experimental_distribute_dataset(pairs.batch(4));
  const auto [x, y] = batches.iterator().get_next();
  EXPECT_EQ(total(x[1]) + total(y[0]), 5 + 9);
  EXPECT_EQ(strategy.experimental_make_numpy_dataset(std::vector{at::ones({3}), at::ones({3})}).cardinality().value(),
            2);
}

}  // namespace
}  // namespace lockstep
