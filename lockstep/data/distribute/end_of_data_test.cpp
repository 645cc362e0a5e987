#include "lockstep/data/distribute/distributed_input.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/distribute/input_plan.h"

namespace lockstep::data {
namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;

ElementSpec spec_of(const Shapes& shapes) {
  std::vector<ComponentSpec> components;
  for (const auto& shape : shapes) components.push_back(ComponentSpec::tensor(at::kFloat, shape));
  return {std::move(components)};
}

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
    EXPECT_EQ(handles_partial_steps(spec_of(row.shapes), row.infinite, row.workers), row.handled);
  }
  EXPECT_TRUE(handles_partial_steps(ElementSpec::unknown(), false, 1));
}

TEST(PartialSteps, DummiesHaveNoRows) {
  const std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> kTable[] = {
      {{-1, 3}, {0, 3}}, {{-1, -1}, {0, 0}}, {{4, 3}, {0, 3}}, {{4, -1}, {0, 0}}, {{4, -1, 5}, {0, 0, 5}}, {{}, {}},
  };
  for (const auto& [shape, dummy] : kTable) EXPECT_EQ(empty_batch(spec_of({shape}), {}).tensor(0).sizes().vec(), dummy);
}

TEST(PartialSteps, DecideWhetherThereIsAStep) {
  const struct {
    bool partial;
    int local, replicas, total;
    bool exists;
  } kTable[] = {
      {true, 2, 2, 2, true},  {true, 1, 2, 1, true},   {true, 0, 2, 1, true},   {true, 0, 2, 0, false},
      {false, 2, 2, 0, true}, {false, 1, 2, 5, false}, {false, 0, 2, 0, false},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(has_step(row.partial, row.local, row.replicas, row.total), row.exists);
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
      {{{8}, {4}}, -1, {1, 4, 0}, true, {{2}, {1}}},  // each component separately
      {{{6}}, -1, {1, 4, 0}, true, {{-1}}},
      {{{10}}, 10, {1, 1, 0}, false, {{10}}},  // one replica: unchanged
      {{{}}, -1, {1, 1, 0}, false, {{}}},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(distributed_spec(spec_of(row.shapes), row.batch, row.cluster, row.partial), spec_of(row.expected));
  }
}

TEST(DistributedSpec, TellsTheGlobalBatchSizeFromShapesAlone) {
  EXPECT_EQ(batch_size_by_spec(spec_of({{8, 3}, {8}})), 8);
  EXPECT_EQ(batch_size_by_spec(spec_of({{8, 3}, {7}})), kUnknownBatchSize);
  EXPECT_EQ(batch_size_by_spec(spec_of({{8, 3}, {-1}})), kAskStages);
  EXPECT_THROW(batch_size_by_spec(spec_of({{}})), InvalidArgument);
  EXPECT_THROW(batch_size_by_spec(spec_of({{-1}, {}})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
