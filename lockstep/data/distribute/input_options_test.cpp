#include "lockstep/data/distribute/input_options.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/logged_lines.h"

namespace lockstep::data {
namespace {

using enum ReplicationMode;

TEST(InputOptions, OfADatasetRefusePerReplica) {
  EXPECT_NO_THROW(check_for_dataset({}));
  EXPECT_NO_THROW(check_for_dataset({.place_dataset_on_device = true}));
  EXPECT_THROW(check_for_dataset({.replication_mode = PerReplica}), Unimplemented);
  EXPECT_THROW(check_for_dataset({.per_replica_buffer_size = -1}), InvalidArgument);
}

TEST(InputOptions, OfAFunctionMustFitTogether) {
  EXPECT_NO_THROW(check_for_function({}, 3));
  EXPECT_NO_THROW(check_for_function({.replication_mode = PerReplica}, 1));
  EXPECT_NO_THROW(check_for_function(
      {.fetch_to_device = false, .replication_mode = PerReplica, .place_dataset_on_device = true}, 1));
  EXPECT_THROW(check_for_function({.replication_mode = PerReplica}, 2), Unimplemented);
  EXPECT_THROW(check_for_function({.place_dataset_on_device = true}, 1), InvalidArgument);
  EXPECT_THROW(check_for_function({.fetch_to_device = false, .place_dataset_on_device = true}, 1), InvalidArgument);
  EXPECT_THROW(check_for_function({.replication_mode = PerReplica, .place_dataset_on_device = true}, 1),
               InvalidArgument);
  EXPECT_THROW(check_for_function({.per_replica_buffer_size = -2}, 1), InvalidArgument);
}

TEST(InputOptions, PoliciesHaveTensorFlowsNamesAndNumbers) {
  EXPECT_EQ(to_string(AutoShardPolicy::Auto), "AUTO");
  EXPECT_EQ(static_cast<int>(AutoShardPolicy::Off), -1);
  EXPECT_EQ(static_cast<int>(AutoShardPolicy::Hint), 3);
  EXPECT_THROW(to_string(static_cast<AutoShardPolicy>(7)), InvalidArgument);
}

TEST(InputOptions, SayOnceThatPlacingADatasetHasNoEffect) {
  const LoggedLines log;
  const InputOptions placed{
      .fetch_to_device = false, .replication_mode = ReplicationMode::PerReplica, .place_dataset_on_device = true};
  for (int i = 0; i < 3; ++i) check_for_function(placed, 1);
  EXPECT_LE(log.count("place_dataset_on_device has no effect"), 1);
}

}  // namespace
}  // namespace lockstep::data
