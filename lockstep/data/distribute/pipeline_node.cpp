#include "lockstep/data/distribute/pipeline_node.h"

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

enum class BatchRole { Opaque, Makes, PassThrough, AllInputs };

struct Roles {
  ShardRole shard;
  BatchRole batch;
};

using enum ShardRole;

// One line per kind of stage. What is not listed is Other and Opaque: nothing is assumed about it.
const std::map<std::string, Roles> kRoles = {
    {"range", {Source, BatchRole::Opaque}},
    {"from_tensors", {Source, BatchRole::Opaque}},
    {"from_tensor_slices", {Slices, BatchRole::Opaque}},
    {"list_files", {Slices, BatchRole::Opaque}},
    {"from_generator", {Source, BatchRole::Opaque}},
    {"from_npy", {Source, BatchRole::Opaque}},
    {"torch_dataset", {Source, BatchRole::Opaque}},
    {"tfrecord", {Reader, BatchRole::Opaque}},
    {"text_line", {Reader, BatchRole::Opaque}},
    {"csv", {Reader, BatchRole::Opaque}},
    {"fixed_length_record", {Reader, BatchRole::Opaque}},
    {"batch", {PassThrough, BatchRole::Makes}},
    {"padded_batch", {PassThrough, BatchRole::Makes}},
    {"ragged_batch", {PassThrough, BatchRole::Makes}},
    {"map_and_batch", {PassThrough, BatchRole::Makes}},
    {"parallel_batch", {PassThrough, BatchRole::Opaque}},
    {"rebatch", {PassThrough, BatchRole::Opaque}},
    {"ceil_split", {PassThrough, BatchRole::Opaque}},
    {"unbatch", {PassThrough, BatchRole::Opaque}},
    {"window", {PassThrough, BatchRole::Opaque}},
    {"map", {PassThrough, BatchRole::Opaque}},
    {"parallel_map", {PassThrough, BatchRole::Opaque}},
    {"parse_example", {PassThrough, BatchRole::PassThrough}},
    {"filter", {PassThrough, BatchRole::PassThrough}},
    {"cache", {PassThrough, BatchRole::PassThrough}},
    {"with_options", {PassThrough, BatchRole::PassThrough}},
    {"prefetch", {PassThrough, BatchRole::PassThrough}},
    {"repeat", {PassThrough, BatchRole::PassThrough}},
    {"shard", {PassThrough, BatchRole::PassThrough}},
    {"shuffle", {PassThrough, BatchRole::PassThrough}},
    {"skip", {PassThrough, BatchRole::PassThrough}},
    {"take", {PassThrough, BatchRole::PassThrough}},
    {"assert_cardinality", {Assertion, BatchRole::PassThrough}},
    {"zip", {AllInputs, BatchRole::AllInputs}},
    {"concatenate", {AllInputs, BatchRole::AllInputs}},
    {"flat_map", {Function, BatchRole::Opaque}},
    {"interleave", {Function, BatchRole::Opaque}},
};

// Stages and sources that leave out rows without computing them.
const std::set<std::string> kLeavesOutRows = {"range",         "from_tensors", "from_tensor_slices",
                                              "list_files",    "from_npy",     "map",
                                              "parse_example", "zip",          "concatenate",
                                              "repeat",        "take",         "skip",
                                              "shard",         "enumerate",    "csv",
                                              "tfrecord",      "text_line",    "fixed_length_record",
                                              "with_options",  "torch_dataset"};

const PipelineNode* first_computing_rows(const PipelineNode& node) {
  // A shuffle needs to know how many rows there are: then it chooses among their numbers.
  const bool leaves_out =
      kLeavesOutRows.contains(node.kind) || (node.kind == "shuffle" && node.inputs.at(0).cardinality);
  if (!leaves_out) return &node;
  for (const PipelineNode& input : node.inputs) {
    if (const PipelineNode* found = first_computing_rows(input)) return found;
  }
  return nullptr;
}

}  // namespace

std::string to_string(const PipelineNode& node) {
  std::string text = node.kind;
  if (node.batch_size >= 0) text += str('(', node.batch_size, ')');
  if (node.shards > 0) text += str('(', node.shards, ", ", node.shard, ')');
  if (node.inputs.size() == 1) return str(text, " < ", to_string(node.inputs.front()));
  if (node.inputs.empty()) return text;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) text += str(i ? ", " : " < (", to_string(node.inputs[i]));
  return text + ")";
}

ShardRole shard_role(const std::string& kind) {
  const auto found = kRoles.find(kind);
  return found == kRoles.end() ? Other : found->second.shard;
}

std::int64_t find_batch_size(const PipelineNode& node) {
  const auto found = kRoles.find(node.kind);
  switch (found == kRoles.end() ? BatchRole::Opaque : found->second.batch) {
    case BatchRole::Opaque: return -1;
    case BatchRole::Makes: return node.batch_size;
    case BatchRole::PassThrough: return find_batch_size(node.inputs.at(0));
    case BatchRole::AllInputs: break;
  }
  const std::int64_t first = find_batch_size(node.inputs.at(0));
  const auto same = [&](const PipelineNode& input) { return find_batch_size(input) == first; };
  return std::ranges::all_of(node.inputs, same) ? first : -1;
}

const PipelineNode* first_computing_all(const PipelineNode& pipeline) {
  const PipelineNode* node = &pipeline;
  while (node->kind == "prefetch" || node->kind == "with_options") node = &node->inputs.at(0);
  return node->kind == "batch" ? first_computing_rows(node->inputs.at(0)) : node;
}

bool has_shard_hint(const PipelineNode& node) { return node.hint || std::ranges::any_of(node.inputs, has_shard_hint); }

}  // namespace lockstep::data
