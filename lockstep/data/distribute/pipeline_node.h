#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// What plans need to know about one stage of a pipeline and, behind it, about those it reads from. A plan is made of a
/// tree of these and is itself one; the stages are then rebuilt after it.
struct PipelineNode {
  std::string kind;                       ///< "batch", "map", "tfrecord", ...
  std::vector<PipelineNode> inputs = {};  ///< none: a source
  int stage = kNew;                       ///< number of the stage that this stands for

  std::int64_t batch_size = -1;             ///< of a stage that makes batches; -1: not known
  bool function_reads_files = false;        ///< of flat_map and interleave: the datasets of their function read files
  std::string unseen_because_of = {};       ///< the stage that would have to run to find that out, so nobody looked
  bool hint = false;                        ///< of shard: its numbers are to be filled in
  std::optional<std::int64_t> cardinality;  ///< number of elements; none: not known or endless
  // Of a shard that a plan has put in or filled in: every shard must get something, or it is an error.
  int shards = 0;
  int shard = 0;

  static constexpr int kNew = -1;  ///< a stage that the plan adds

  bool operator==(const PipelineNode&) const = default;
};

/// "batch < map < shard(3, 1) < list_files"; inputs of zip and concatenate in parentheses.
LOCKSTEP_EXPORT std::string to_string(const PipelineNode& node);

/// What a kind of stage means for sharing out files.
enum class ShardRole {
  PassThrough,  ///< look at its input
  AllInputs,    ///< look at all its inputs
  Function,     ///< makes a dataset of every element
  Reader,       ///< reads the files that its input names
  Slices,       ///< a list in memory
  Source,       ///< another source that cannot be shared out by file
  Assertion,    ///< counts elements, which sharing out makes wrong
  Other         ///< anything that is not known to keep its meaning
};
LOCKSTEP_EXPORT ShardRole shard_role(const std::string& kind);

/// The size of the batches that a pipeline makes, -1 where it cannot be told without running it.
LOCKSTEP_EXPORT std::int64_t find_batch_size(const PipelineNode& node);

/// The first stage from the end that must compute rows which nobody wants, when single rows of a pipeline of batches
/// are to be left out; null if none must.
LOCKSTEP_EXPORT const PipelineNode* first_computing_all(const PipelineNode& pipeline);

/// Whether a shard in the pipeline waits for its numbers.
LOCKSTEP_EXPORT bool has_shard_hint(const PipelineNode& node);

}  // namespace lockstep::data
