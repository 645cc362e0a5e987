#include "lockstep/data/input_context.h"

#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(InputContext, IsTheOnlyPipelineOfOneReplicaByDefault) {
  EXPECT_EQ(InputContext{},
            (InputContext{.num_input_pipelines = 1, .input_pipeline_id = 0, .num_replicas_in_sync = 1}));
  EXPECT_EQ(InputContext{}.get_per_replica_batch_size(13), 13);
}

TEST(InputContext, SharesABatchEvenlyAmongReplicasNotPipelines) {
  const InputContext context{.num_input_pipelines = 2, .input_pipeline_id = 1, .num_replicas_in_sync = 6};
  EXPECT_EQ(context.get_per_replica_batch_size(12), 2);
  EXPECT_EQ(context.get_per_replica_batch_size(0), 0);
}

TEST(InputContext, RefusesABatchThatCannotBeSharedEvenly) {
  const InputContext context{.num_replicas_in_sync = 6};
  try {
    context.get_per_replica_batch_size(13);
    FAIL() << "13 rows were given to 6 replicas";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("13 is not divisible by 6 replicas"), std::string::npos) << error.what();
  }
}

TEST(InputContext, RefusesToShareAmongNoReplicas) {
  EXPECT_THROW(InputContext{.num_replicas_in_sync = 0}.get_per_replica_batch_size(4), InvalidArgument);
}

TEST(InputContext, PrintsAsTensorFlowDoes) {
  const InputContext context{.num_input_pipelines = 3, .input_pipeline_id = 2};
  EXPECT_EQ(to_string(context), "InputContext(input pipeline id 2, total: 3)");
  std::ostringstream out;
  out << context;
  EXPECT_EQ(out.str(), to_string(context));
}

}  // namespace
}  // namespace lockstep
