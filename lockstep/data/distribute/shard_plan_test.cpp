#include "lockstep/data/distribute/shard_plan.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

PipelineNode source(std::string kind, std::int64_t cardinality = 10) {
  return {.kind = std::move(kind), .stage = 0, .cardinality = cardinality};
}

/// `kinds` from the source on: over(source("range"), {"map", "batch"}).
PipelineNode over(PipelineNode node, std::initializer_list<const char*> kinds) {
  int stage = 100;
  for (const char* kind : kinds) {
    const std::string name = kind;
    PipelineNode next{.kind = name == "reading_flat_map" ? "flat_map" : name, .stage = stage++};
    next.function_reads_files = name == "reading_flat_map";
    next.inputs.push_back(std::move(node));
    node = std::move(next);
  }
  return node;
}

PipelineNode reader(int files) { return over(source("from_tensor_slices", files), {"tfrecord"}); }

PipelineNode batch(PipelineNode node, std::int64_t size, std::string kind = "batch") {
  return {.kind = std::move(kind), .inputs = {std::move(node)}, .stage = 50, .batch_size = size};
}

PipelineNode joined(const char* kind, PipelineNode a, PipelineNode b) {
  return {.kind = kind, .inputs = {std::move(a), std::move(b)}, .stage = 60};
}

const ClusterShape kThree{3, 1, 1};

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(BatchSize, IsFoundThroughStagesThatKeepBatches) {
  const auto range = source("range");
  EXPECT_EQ(find_batch_size(batch(range, 4)), 4);
  EXPECT_EQ(find_batch_size(batch(range, 4, "padded_batch")), 4);
  EXPECT_EQ(find_batch_size(batch(range, 4, "parallel_batch")), -1);
  EXPECT_EQ(find_batch_size(over(batch(range, 4), {"filter", "repeat", "take", "skip", "shuffle", "shard", "cache",
                                                   "prefetch", "with_options", "assert_cardinality"})),
            4);
  for (const char* opaque : {"map", "flat_map", "interleave", "unbatch", "window", "rebatch", "scan", "enumerate"}) {
    EXPECT_EQ(find_batch_size(over(batch(range, 4), {opaque})), -1) << opaque;
  }
  EXPECT_EQ(find_batch_size(range), -1);
  EXPECT_EQ(find_batch_size(joined("zip", batch(range, 4), batch(range, 4))), 4);
  EXPECT_EQ(find_batch_size(joined("zip", batch(range, 4), batch(range, 5))), -1);
  EXPECT_EQ(find_batch_size(joined("concatenate", batch(range, 4), over(batch(range, 4), {"map"}))), -1);
}

struct Row {
  PipelineNode pipeline;
  AutoShardPolicy policy;
  ShardBy by;
  const char* text;
};

TEST(ShardPlan, PutsTheShardInFrontOfTheReader) {
  using enum AutoShardPolicy;
  const Row kTable[] = {
      {over(source("list_files"), {"reading_flat_map", "map"}), Auto, ShardBy::Files,
       "map < flat_map < shard(3, 1) < list_files"},
      {over(source("from_tensor_slices"), {"tfrecord", "batch"}), File, ShardBy::Files,
       "batch < tfrecord < shard(3, 1) < from_tensor_slices"},
      {over(reader(4), {"map"}), Auto, ShardBy::Files, "map < tfrecord < shard(3, 1) < from_tensor_slices"},
      {source("range"), Auto, ShardBy::Rows, "range"},
      {over(reader(4), {"map"}), Data, ShardBy::Rows, "map < tfrecord < from_tensor_slices"},
      {over(reader(4), {"map"}), Off, ShardBy::Nothing, "map < tfrecord < from_tensor_slices"},
      {over(reader(4), {"scan"}), Auto, ShardBy::Rows, "scan < tfrecord < from_tensor_slices"},
      // shuffles move behind the shard
      {over(source("list_files"), {"shuffle", "map", "reading_flat_map"}), Auto, ShardBy::Files,
       "flat_map < shuffle < shard(3, 1) < map < list_files"},
      // a function over a function of a list: its elements are shared out
      {over(source("list_files"), {"reading_flat_map", "map", "interleave"}), Auto, ShardBy::Files,
       "interleave < map < shard(3, 1) < flat_map < list_files"},
      {over(reader(4), {"window", "flat_map"}), Auto, ShardBy::Files,
       "flat_map < window < shard(3, 1) < tfrecord < from_tensor_slices"},
      {over(source("range"), {"flat_map", "interleave"}), Auto, ShardBy::Rows, "interleave < flat_map < range"},
      // assertions go where AUTO or FILE look, and stay under DATA
      {over(reader(4), {"assert_cardinality"}), Auto, ShardBy::Files, "tfrecord < shard(3, 1) < from_tensor_slices"},
      {over(source("range"), {"assert_cardinality"}), Auto, ShardBy::Rows, "range"},
      {over(source("range"), {"assert_cardinality"}), Data, ShardBy::Rows, "assert_cardinality < range"},
      // every input has files, or none is touched
      {joined("zip", reader(4), reader(5)), Auto, ShardBy::Files,
       "zip < (tfrecord < shard(3, 1) < from_tensor_slices, tfrecord < shard(3, 1) < from_tensor_slices)"},
      {joined("zip", reader(4), source("range")), Auto, ShardBy::Rows, "zip < (tfrecord < from_tensor_slices, range)"},
  };
  for (const Row& row : kTable) {
    const ShardPlan plan = plan_shards(row.pipeline, row.policy, kThree);
    EXPECT_EQ(plan.by, row.by) << row.text;
    EXPECT_EQ(to_string(plan.pipeline), row.text);
  }
}

TEST(ShardPlan, OfOneWorkerChangesNothingButAssertions) {
  const auto shuffled = over(source("list_files"), {"shuffle", "map", "reading_flat_map"});
  EXPECT_EQ(plan_shards(shuffled, AutoShardPolicy::Auto, {1, 4, 0}).pipeline, shuffled);
  EXPECT_EQ(plan_shards(source("range"), AutoShardPolicy::File, {1, 4, 0}).by, ShardBy::Files);
  const auto plan = plan_shards(over(source("range"), {"assert_cardinality"}), AutoShardPolicy::Auto, {1, 1, 0});
  EXPECT_EQ(to_string(plan.pipeline), "range");
  EXPECT_EQ(plan.removed, (std::vector<std::string>{"assert_cardinality"}));
}

TEST(ShardPlan, SaysWhyThereAreNoFilesToShareOut) {
  EXPECT_NE(plan_shards(over(source("from_generator"), {"map"}), AutoShardPolicy::Auto, kThree)
                .unshardable.find("from_generator"),
            std::string::npos);
  EXPECT_EQ(plan_shards(reader(3), AutoShardPolicy::Auto, kThree).unshardable, "");
  EXPECT_THROW(plan_shards(source("range"), AutoShardPolicy::File, kThree), NotFound);
  EXPECT_THROW(plan_shards(over(reader(3), {"scan"}), AutoShardPolicy::File, kThree), NotFound);
}

TEST(ShardPlan, FillsInHintsOnlyWhenAsked) {
  auto hinted = over(source("range"), {"shard", "batch"});
  hinted.inputs.front().hint = true;
  const auto plan = plan_shards(hinted, AutoShardPolicy::Hint, kThree);
  EXPECT_EQ(to_string(plan.pipeline), "batch < shard(3, 1) < range");
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    EXPECT_THROW(plan_shards(hinted, policy, kThree), FailedPrecondition);
  }
}

TEST(ShardPlan, HintsWithoutAShardShareOutNothing) {
  const auto plain = batch(over(source("range"), {"shard"}), 4);  // a shard that has its numbers
  const auto plan = plan_shards(plain, AutoShardPolicy::Hint, kThree);
  EXPECT_EQ(plan.by, ShardBy::Nothing);
  EXPECT_EQ(plan.pipeline, plain);
}

TEST(ShardPlan, KnowsWhetherFilesOrOtherElementsAreSharedOut) {
  const auto shared = [](const PipelineNode& pipeline, AutoShardPolicy policy = AutoShardPolicy::Auto) {
    return shared_out(plan_shards(pipeline, policy, kThree).pipeline);
  };
  const auto by_reader = shared(over(source("list_files", 7), {"shuffle", "tfrecord", "map"}));
  ASSERT_EQ(by_reader.size(), 1u);
  EXPECT_TRUE(by_reader[0].files);
  EXPECT_EQ(by_reader[0].count, 7);
  EXPECT_TRUE(shared(over(source("list_files"), {"reading_flat_map"}))[0].files);
  // The records of an inner function, not files.
  EXPECT_FALSE(shared(over(source("list_files"), {"reading_flat_map", "map", "interleave"}))[0].files);
  EXPECT_FALSE(shared(over(reader(4), {"window", "flat_map"}))[0].files);
  EXPECT_EQ(shared(joined("zip", reader(4), reader(5)))[1].count, 5);
  EXPECT_TRUE(shared(source("range")).empty());
  auto hinted = over(source("range", 30), {"shard", "batch"});
  hinted.inputs.front().hint = true;
  EXPECT_FALSE(shared(hinted, AutoShardPolicy::Hint)[0].files);
}

TEST(ShardPlan, FewerFilesThanWorkersIsAnErrorOnEveryWorker) {
  for (int worker = 0; worker < 3; ++worker) {
    const ClusterShape shape{3, 1, worker};
    for (const auto& too_few : {reader(2), over(source("list_files", 2), {"reading_flat_map"})}) {
      for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::File}) {
        const std::string error = error_of([&] { plan_shards(too_few, policy, shape); });
        EXPECT_NE(error.find("not enough files for 3 workers"), std::string::npos) << error;
        EXPECT_NE(error.find("2 files to share out"), std::string::npos) << error;
        EXPECT_NE(error.find("switch sharding off with AutoShardPolicy::Off"), std::string::npos) << error;
        EXPECT_NO_THROW(plan_shards(too_few, policy, shape, TooFew::FailsWhereSeen));
      }
      EXPECT_NO_THROW(plan_shards(too_few, AutoShardPolicy::Off, shape));
    }
    for (const auto& enough : {reader(3), over(source("list_files", 0), {"reading_flat_map"})}) {
      EXPECT_NO_THROW(plan_shards(enough, AutoShardPolicy::Auto, shape));
    }
    auto hinted = over(source("range", 2), {"shard", "batch"});
    hinted.inputs.front().hint = true;
    const std::string error = error_of([&] { plan_shards(hinted, AutoShardPolicy::Hint, shape); });
    EXPECT_NE(error.find("not enough elements for 3 workers"), std::string::npos) << error;
  }
}

TEST(Shard, NumbersMustMakeSense) {
  EXPECT_NO_THROW(check_shard(3, 2));
  EXPECT_THROW(check_shard(2, 2), InvalidArgument);
  EXPECT_THROW(check_shard(2, -1), InvalidArgument);
  EXPECT_THROW(check_shard(0, 0), InvalidArgument);
  EXPECT_THROW(check_shard(-2, 0), InvalidArgument);
  EXPECT_THROW(check_shard(kShardHint, 0), FailedPrecondition);
}

}  // namespace
}  // namespace lockstep::data
