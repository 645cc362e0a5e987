#include <gtest/gtest.h>

#include <vector>

#include "lockstep/compat.h"
#include "lockstep/lockstep.h"
#include "tests/multi_worker/together.h"
#include "tests/support/replicas.h"

// The names of TensorFlow.
namespace together {
namespace {

// names: TF_CONFIG, cluster_spec, task_type, task_id
TEST(CompatTogether, TheNamesOfTensorFlowReachAllWorkers) {
  namespace v2 = ls::compat::v2;
  namespace v1 = ls::compat::v1;
  const v2::experimental::MultiWorkerMirroredStrategy strategy(
      ls::MultiWorkerOptions{.devices = ls::test_devices(2), .intra_op_threads = 1, .seed = 3});
  const int n = strategy.num_replicas_in_sync(), rank = strategy.core().worker_id();
  EXPECT_EQ(n, 2 * strategy.core().num_workers());
  EXPECT_TRUE(strategy.extended().experimental_between_graph());
  EXPECT_TRUE(strategy.extended().experimental_should_init());
  EXPECT_EQ(strategy.extended().should_checkpoint(), rank == 0);
  EXPECT_EQ(strategy.extended().should_save_summary(), rank == 0);

  const auto sums = strategy.experimental_run_v2(
      [](const torch::Tensor& x) {
        const auto replica = v2::get_replica_context();
        return replica.all_reduce(v2::ReduceOp::SUM, x + replica.replica_id_in_sync_group());
      },
      std::tuple{torch::ones({})});
  EXPECT_EQ(strategy.experimental_local_results(sums)[1].item<int>(), n + n * (n - 1) / 2);
  EXPECT_EQ(strategy.reduce("mean", sums, v2::None).item<int>(), n + n * (n - 1) / 2);

  auto rows = strategy.experimental_make_numpy_dataset(torch::arange(4 * n)).batch(2 * n);
  int sum = 0;
  for (const auto& batch : strategy.experimental_distribute_dataset(rows)) {
    const auto parts = strategy.experimental_run_v2([](const torch::Tensor& x) { return x.sum(); }, std::tuple{batch});
    sum += strategy.reduce(v2::ReduceOp::SUM, parts, v2::None).item<int>();
  }
  EXPECT_EQ(sum, 2 * n * (4 * n - 1));

  // With auto-sharding off each worker has the rows that it reads: here its own 2 n, a step each.
  v2::Options off;
  off.experimental_distribute.auto_shard = false;
  const auto own = ls::data::range(2 * n * rank, 2 * n * (rank + 1)).batch(n).with_options(off);
  const auto first_rows = [&](const auto& step) { return step[0][0].template item<int>(); };
  EXPECT_EQ(first_rows(strategy.experimental_distribute_dataset(own).iterator().get_next()), 2 * n * rank);
  EXPECT_EQ(first_rows(v1::Strategy(strategy.core()).make_dataset_iterator(own).get_next()), 2 * n * rank);
  int steps_of_own = 0;
  for (const auto& batch : strategy.experimental_distribute_dataset(own)) {
    EXPECT_GE(batch[1][0].item<int>(), 2 * n * rank);
    ++steps_of_own;
  }
  EXPECT_EQ(steps_of_own, n);

  // Only in TensorFlow 1: on all workers an iterator ends as soon as a replica of one of them has no data.
  const v1::Strategy names(strategy.core());
  auto iterator = names.make_input_fn_iterator([&](const v1::InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, n / 2);
    EXPECT_EQ(context.input_pipeline_id, rank);
    return ls::data::range(rank == 0 ? 9 : 7).batch(1);
  });
  int steps = 0;
  EXPECT_THROW(
      for (;; ++steps) names.experimental_run([](const torch::Tensor& x) { EXPECT_EQ(x.numel(), 1); }, iterator),
      ls::OutOfRange);
  EXPECT_EQ(steps, 3);
  // Every worker is a separate client: its program sees its own replicas' values.
  iterator.initialize();
  const auto context = names.extended().experimental_run_steps_on_iterator(
      [&](ls::contrib::MultiStepContext& ctx, const ls::PerReplica<torch::Tensor>& rows_of_step) {
        ctx.set_last_step_output("each", rows_of_step);
        names.run([&] { ctx.set_non_tensor_output("id", v1::get_replica_context().replica_id_in_sync_group()); });
      },
      iterator, 2, std::vector<torch::Tensor>(2));
  EXPECT_EQ(context.last_step_outputs().at("each").values().size(), 2U);
  EXPECT_EQ(std::any_cast<std::vector<int>>(context.non_tensor_outputs().at("id")),
            (std::vector{2 * rank, 2 * rank + 1}));
  const auto config = names.update_config_proto({});
  EXPECT_EQ(config.experimental.collective_group_leader, "/job:worker/replica:0/task:0");
  EXPECT_EQ(config.device_filters, std::vector{"/job:worker/task:" + std::to_string(rank)});
}

}  // namespace
}  // namespace together
