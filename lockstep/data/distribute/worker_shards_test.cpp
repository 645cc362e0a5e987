#include "lockstep/data/distribute/worker_shards.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/batch_sizes.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/errors.h"
#include "tests/support/file_stages.h"

namespace lockstep::data {
namespace {

const ElementSpec kBytes{{{ComponentSpec::bytes()}}};
const ClusterShape kThree{3, 1, 1};

StagePtr numbers(std::int64_t count = 10) { return make_range(0, count); }

StagePtr file_names(int count = 10) {
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) files.push_back(str("file ", i));
  return make_slices(Element({Strings(std::move(files))}));
}

StagePtr reader(int files) { return make_tfrecord_stage(file_names(files), {}); }

StagePtr generator() {
  return make_generator([]() -> Generator { return [](Element&) { return false; }; }, kBytes, {});
}

/// `kinds` from the source on: over(numbers(), {"map", "batch"}). Functions read files only if named so.
StagePtr over(StagePtr stage, std::initializer_list<std::string_view> kinds) {
  const auto always = [](const Element&) { return true; };
  for (const std::string_view kind : kinds) {
    if (kind == "tfrecord") {
      stage = make_tfrecord_stage(stage, {});
    } else if (kind == "reading_flat_map") {
      stage = make_interleave(
          stage, [](Element&&) { return reader(1); }, kBytes, std::nullopt);
    } else if (kind == "flat_map") {
      stage = make_interleave(
          stage, [](Element&&) { return numbers(); }, kBytes, std::nullopt);
    } else if (kind == "interleave") {
      stage = make_interleave(
          stage, [](Element&&) { return numbers(); }, kBytes, InterleaveOptions{});
    } else if (kind == "map") {
      stage = make_map(stage, [](Element&) {}, stage->element_spec(), {});
    } else if (kind == "scan") {
      stage = make_scan(
          stage, Element(), [](Element&, Element&) {}, stage->element_spec());
    } else if (kind == "enumerate") {
      stage = make_enumerate(stage, 0);
    } else if (kind == "shuffle") {
      stage = make_shuffle(stage, 3);
    } else if (kind == "batch") {
      stage = make_batch(stage, 4);
    } else if (kind == "unbatch") {
      stage = make_unbatch(stage);
    } else if (kind == "rebatch") {
      stage = make_rebatch(stage, {2});
    } else if (kind == "window") {
      stage = make_window(stage, 2, {});
    } else if (kind == "filter") {
      stage = make_filter(stage, always);
    } else if (kind == "repeat") {
      stage = make_repeat(stage, 2);
    } else if (kind == "take") {
      stage = make_take(stage, 5);
    } else if (kind == "skip") {
      stage = make_skip(stage, 1);
    } else if (kind == "shard") {
      stage = make_shard(stage, 2, 0);
    } else if (kind == "shard_hint") {
      stage = make_shard(stage, kShardHint, kShardHint);
    } else if (kind == "cache") {
      stage = make_cache(stage);
    } else if (kind == "prefetch") {
      stage = make_prefetch(stage, 2);
    } else if (kind == "with_options") {
      stage = make_with_options(stage, {});
    } else if (kind == "assert_cardinality") {
      stage = make_assert_cardinality(stage, 10);
    } else {
      ADD_FAILURE() << "no stage " << kind;
    }
  }
  return stage;
}

/// "batch < map < shard(3, 1) < range"; inputs of zip and concatenate in parentheses.
std::string chain(const Stage& stage) {
  std::string text(stage.kind());
  if (stage.describe().starts_with("shard(3, 1")) text = "shard(3, 1)";
  if (stage.inputs().size() == 1) return str(text, " < ", chain(*stage.input()));
  if (stage.inputs().empty()) return text;
  for (std::size_t i = 0; i < stage.inputs().size(); ++i) text += str(i ? ", " : " < (", chain(*stage.inputs()[i]));
  return text + ")";
}

StagePtr side_by_side(const StagePtr& a, const StagePtr& b) { return make_zip({a, b}); }

TEST(BatchSize, IsFoundThroughStagesThatKeepBatches) {
  const StagePtr batches = make_batch(numbers(), 4);
  EXPECT_EQ(find_batch_size(*batches), 4);
  EXPECT_EQ(find_batch_size(*make_padded_batch(numbers(), 4, {})), 4);
  EXPECT_EQ(find_batch_size(*make_batch(numbers(), 4, {.parallel_calls = 2})), -1);
  EXPECT_EQ(find_batch_size(*over(batches, {"filter", "repeat", "take", "skip", "shuffle", "shard", "cache", "prefetch",
                                            "with_options", "assert_cardinality"})),
            4);
  for (const char* opaque : {"map", "flat_map", "interleave", "unbatch", "window", "rebatch", "scan", "enumerate"}) {
    EXPECT_EQ(find_batch_size(*over(batches, {opaque})), -1) << opaque;
  }
  EXPECT_EQ(find_batch_size(*numbers()), -1);
  EXPECT_EQ(find_batch_size(*side_by_side(batches, batches)), 4);
  EXPECT_EQ(find_batch_size(*side_by_side(batches, make_batch(numbers(), 5))), -1);
  EXPECT_EQ(find_batch_size(*make_concatenate(batches, over(batches, {"map"}))), -1);
}

struct PlanCase {
  StagePtr pipeline;
  AutoShardPolicy policy;
  AutoShardPolicy by;
  const char* text;
};

TEST(ShardPlan, PutsTheShardInFrontOfTheReader) {
  using enum AutoShardPolicy;
  const PlanCase kTable[] = {
      {over(file_names(), {"reading_flat_map", "map"}), Auto, AutoShardPolicy::File,
       "map < flat_map < shard(3, 1) < from_tensor_slices"},
      {over(file_names(), {"tfrecord", "batch"}), File, AutoShardPolicy::File,
       "batch < tfrecord < shard(3, 1) < from_tensor_slices"},
      {over(reader(4), {"map"}), Auto, AutoShardPolicy::File, "map < tfrecord < shard(3, 1) < from_tensor_slices"},
      {numbers(), Auto, AutoShardPolicy::Data, "range"},
      {over(reader(4), {"map"}), Data, AutoShardPolicy::Data, "map < tfrecord < from_tensor_slices"},
      {over(reader(4), {"map"}), Off, AutoShardPolicy::Off, "map < tfrecord < from_tensor_slices"},
      {over(reader(4), {"scan"}), Auto, AutoShardPolicy::Data, "scan < tfrecord < from_tensor_slices"},
      // shuffles move above the shard
      {over(file_names(), {"shuffle", "repeat", "reading_flat_map"}), Auto, AutoShardPolicy::File,
       "flat_map < shuffle < shard(3, 1) < repeat < from_tensor_slices"},
      // a function over a function of a list: its elements are shared
      {over(file_names(), {"reading_flat_map", "map", "interleave"}), Auto, AutoShardPolicy::File,
       "interleave < map < shard(3, 1) < flat_map < from_tensor_slices"},
      {over(reader(4), {"window", "flat_map"}), Auto, AutoShardPolicy::File,
       "flat_map < window < shard(3, 1) < tfrecord < from_tensor_slices"},
      {over(numbers(), {"flat_map", "interleave"}), Auto, AutoShardPolicy::Data, "interleave < flat_map < range"},
      // assertions are removed for AUTO or FILE, and kept under DATA
      {over(reader(4), {"assert_cardinality"}), Auto, AutoShardPolicy::File,
       "tfrecord < shard(3, 1) < from_tensor_slices"},
      {over(numbers(), {"assert_cardinality"}), Auto, AutoShardPolicy::Data, "range"},
      {over(numbers(), {"assert_cardinality"}), Data, AutoShardPolicy::Data, "assert_cardinality < range"},
      // either every input has files, or none is changed
      {side_by_side(reader(4), reader(5)), Auto, AutoShardPolicy::File,
       "zip < (tfrecord < shard(3, 1) < from_tensor_slices, tfrecord < shard(3, 1) < from_tensor_slices)"},
      {side_by_side(reader(4), numbers()), Auto, AutoShardPolicy::Data, "zip < (tfrecord < from_tensor_slices, range)"},
  };
  for (const PlanCase& row : kTable) {
    const ShardPlan plan = plan_shards(row.pipeline, row.policy, kThree);
    EXPECT_EQ(plan.by, row.by) << row.text;
    EXPECT_EQ(chain(*plan.pipeline), row.text);
  }
}

TEST(ShardPlan, OfOneWorkerChangesNothingButAssertions) {
  const auto shuffled = over(file_names(), {"shuffle", "repeat", "reading_flat_map"});
  EXPECT_EQ(plan_shards(shuffled, AutoShardPolicy::Auto, {1, 4, 0}).pipeline, shuffled);
  EXPECT_EQ(plan_shards(numbers(), AutoShardPolicy::File, {1, 4, 0}).by, AutoShardPolicy::File);
  const auto plan = plan_shards(over(numbers(), {"assert_cardinality"}), AutoShardPolicy::Auto, {1, 1, 0});
  EXPECT_EQ(chain(*plan.pipeline), "range");
  EXPECT_EQ(plan.removed, (std::vector<std::string>{"assert_cardinality"}));
}

TEST(ShardPlan, SaysWhyThereAreNoFilesToShareOut) {
  EXPECT_TRUE(
      contains(plan_shards(over(generator(), {"map"}), AutoShardPolicy::Auto, kThree).unshardable, "from_generator"));
  EXPECT_EQ(plan_shards(reader(3), AutoShardPolicy::Auto, kThree).unshardable, "");
  EXPECT_THROW(plan_shards(numbers(), AutoShardPolicy::File, kThree), NotFound);
  EXPECT_THROW(plan_shards(over(reader(3), {"scan"}), AutoShardPolicy::File, kThree), NotFound);
}

TEST(ShardPlan, FillsInHintsOnlyWhenAsked) {
  const auto hinted = over(numbers(), {"shard_hint", "batch"});
  const auto plan = plan_shards(hinted, AutoShardPolicy::Hint, kThree);
  EXPECT_EQ(chain(*plan.pipeline), "batch < shard(3, 1) < range");
  for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    EXPECT_THROW(plan_shards(hinted, policy, kThree), FailedPrecondition);
  }
}

TEST(ShardPlan, HintsWithoutAShardShareOutNothing) {
  const auto plain = over(numbers(), {"shard", "batch"});  // a shard with given numbers
  const auto plan = plan_shards(plain, AutoShardPolicy::Hint, kThree);
  EXPECT_EQ(plan.by, AutoShardPolicy::Off);
  EXPECT_EQ(plan.pipeline, plain);
}

TEST(ShardPlan, KnowsWhetherFilesOrOtherElementsAreSharedOut) {
  const auto shared = [](const StagePtr& pipeline, AutoShardPolicy policy = AutoShardPolicy::Auto) {
    return plan_shards(pipeline, policy, kThree).shared;
  };
  const auto by_reader = shared(over(file_names(7), {"shuffle", "tfrecord", "map"}));
  ASSERT_EQ(by_reader.size(), 1u);
  EXPECT_TRUE(by_reader[0].files);
  EXPECT_EQ(by_reader[0].count, 7);
  EXPECT_TRUE(shared(over(file_names(), {"reading_flat_map"}))[0].files);
  // The records of an inner function, not files.
  EXPECT_FALSE(shared(over(file_names(), {"reading_flat_map", "map", "interleave"}))[0].files);
  EXPECT_FALSE(shared(over(reader(4), {"window", "flat_map"}))[0].files);
  EXPECT_EQ(shared(side_by_side(reader(4), reader(5)))[1].count, 5);
  EXPECT_TRUE(shared(numbers()).empty());
  EXPECT_FALSE(shared(over(numbers(30), {"shard_hint", "batch"}), AutoShardPolicy::Hint)[0].files);
  EXPECT_TRUE(shared(over(file_names(30), {"shard_hint", "tfrecord"}), AutoShardPolicy::Hint)[0].files);
}

TEST(ShardPlan, FewerFilesThanWorkersIsAnErrorOnEveryWorker) {
  for (int worker = 0; worker < 3; ++worker) {
    const ClusterShape shape{3, 1, worker};
    for (const auto& too_few : {reader(2), over(file_names(2), {"reading_flat_map"})}) {
      for (const auto policy : {AutoShardPolicy::Auto, AutoShardPolicy::File}) {
        const std::string error = message_of<InvalidArgument>([&] { plan_shards(too_few, policy, shape); });
        EXPECT_TRUE(contains(error, "not enough files for 3 workers")) << error;
        EXPECT_TRUE(contains(error, "2 files to share out")) << error;
        EXPECT_TRUE(contains(error, "switch sharding off with AutoShardPolicy::Off")) << error;
        EXPECT_NO_THROW(plan_shards(too_few, policy, shape, TooFew::FailsWhereSeen));
      }
      EXPECT_NO_THROW(plan_shards(too_few, AutoShardPolicy::Off, shape));
    }
    EXPECT_NO_THROW(plan_shards(reader(3), AutoShardPolicy::Auto, shape));
    EXPECT_NO_THROW(plan_shards(over(file_names(0), {"tfrecord"}), AutoShardPolicy::Auto, shape))
        << "nothing to share out";
    const auto hinted = over(numbers(2), {"shard_hint", "batch"});
    const std::string error = message_of<InvalidArgument>([&] { plan_shards(hinted, AutoShardPolicy::Hint, shape); });
    EXPECT_TRUE(contains(error, "not enough elements for 3 workers")) << error;
  }
}

TEST(Shard, NumbersMustMakeSense) {
  EXPECT_NO_THROW(make_shard(numbers(), 3, 2));
  EXPECT_THROW(make_shard(numbers(), 2, 2), InvalidArgument);
  EXPECT_THROW(make_shard(numbers(), 2, -1), InvalidArgument);
  EXPECT_THROW(make_shard(numbers(), 0, 0), InvalidArgument);
  EXPECT_THROW(make_shard(numbers(), -2, 0), InvalidArgument);
  EXPECT_THROW(make_shard(numbers(), kShardHint, 0)->iterate({}), FailedPrecondition);
}

}  // namespace
}  // namespace lockstep::data
