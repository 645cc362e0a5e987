#include "lockstep/data/distribute/end_of_data.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/distribute/distributed_spec.h"

namespace lockstep::data {
namespace {

using Shapes = std::vector<StaticShape>;

TEST(PartialSteps, AreHandledUnlessEndlessOrAllShapesKnownOnOneWorker) {
  const struct {
    Shapes shapes;
    bool infinite;
    int workers;
    bool handled;
  } kTable[] = {
      {{{-1}}, false, 1, true},         {{{4}}, false, 1, false}, {{{4}}, false, 2, true},
      {{{-1}}, true, 1, false},         {{{-1}}, true, 3, false}, {{{4}, {4, -1}}, false, 1, true},
      {{{4}, {4, 3}}, false, 1, false}, {{{}}, false, 1, false},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(handles_partial_steps({row.shapes, row.infinite}, row.workers), row.handled);
  }
}

TEST(PartialSteps, DummiesHaveNoRows) {
  EXPECT_EQ(dummy_shape({-1, 3}), (StaticShape{0, 3}));
  EXPECT_EQ(dummy_shape({-1, -1}), (StaticShape{0, 0}));
  EXPECT_EQ(dummy_shape({4, 3}), (StaticShape{0, 3}));
  EXPECT_EQ(dummy_shape({4, -1}), (StaticShape{0, 0}));
  EXPECT_EQ(dummy_shape({4, -1, 5}), (StaticShape{0, 0, 5}));
  EXPECT_EQ(dummy_shape({}), (StaticShape{}));
}

TEST(PartialSteps, DecideWhetherThereIsAStep) {
  const struct {
    bool partial;
    int local, replicas, total;
    StepOutcome outcome;
  } kTable[] = {
      {true, 2, 2, 2, StepOutcome::Complete},  {true, 1, 2, 1, StepOutcome::Complete},
      {true, 0, 2, 1, StepOutcome::Complete},  {true, 0, 2, 0, StepOutcome::End},
      {false, 2, 2, 0, StepOutcome::Complete}, {false, 1, 2, 5, StepOutcome::End},
      {false, 0, 2, 0, StepOutcome::End},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(decide_step(row.partial, row.local, row.replicas, row.total), row.outcome);
  }
}

TEST(DistributedSpec, KnowsTheRowsOfAReplicaWhereTheyAreAlwaysTheSame) {
  const struct {
    Shapes shapes;
    std::int64_t batch;
    ClusterShape cluster;
    bool partial;
    Shapes expected;
  } kTable[] = {
      {{{8, 3}}, 8, {1, 4, 0}, false, {{2, 3}}},      // divisible
      {{{10}}, 10, {1, 4, 0}, false, {{-1}}},         // 3, 3, 2, 2
      {{{-1}}, 8, {1, 4, 0}, true, {{-1}}},           // a last batch may be short
      {{{8}}, 8, {2, 2, 1}, true, {{-1}}},            // any batch may be empty
      {{{8}}, 8, {2, 2, 1}, false, {{2}}},            // an endless dataset
      {{{8}, {4}}, -1, {1, 4, 0}, true, {{2}, {1}}},  // each component by itself
      {{{6}}, -1, {1, 4, 0}, true, {{-1}}},
      {{{10}}, 10, {1, 1, 0}, false, {{10}}},  // one replica: as it is
      {{{}}, -1, {1, 1, 0}, false, {{}}},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(distributed_shapes(row.shapes, row.batch, row.cluster, row.partial), row.expected);
  }
}

TEST(DistributedSpec, TellsTheGlobalBatchSizeFromShapesAlone) {
  EXPECT_EQ(batch_size_by_shapes({{8, 3}, {8}}), 8);
  EXPECT_EQ(batch_size_by_shapes({{8, 3}, {7}}), kUnknownBatchSize);
  EXPECT_EQ(batch_size_by_shapes({{8, 3}, {-1}}), kAskStages);
  EXPECT_THROW(batch_size_by_shapes({{}}), InvalidArgument);
  EXPECT_THROW(batch_size_by_shapes({{-1}, {}}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
