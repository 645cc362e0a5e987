#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/packing.h"
#include "lockstep/data/input_context.h"
#include "lockstep/strategy/strategy.h"
#include "tests/golden/areas.h"
#include "tests/golden/json_value.h"
#include "tests/golden/session.h"

// Areas pack and input_context: arithmetic that needs no replicas.
namespace lockstep::golden {
namespace {

Implementation read_implementation(const json& name) {
  if (name.is_number_integer()) return static_cast<Implementation>(name.get<int>());
  return parse_implementation(name.get<std::string>());
}

CommunicationOptions read_options(const json& bytes_per_pack, const json& timeout, const json& implementation) {
  CommunicationOptions options{.bytes_per_pack = bytes_per_pack, .implementation = read_implementation(implementation)};
  if (!timeout.is_null()) options.timeout_seconds = timeout.get<double>();
  return validated(options);
}

CommunicationOptions read_options(const json& list) {
  if (!list.is_array() || list.size() != 3) unknown_value("options", list);
  return read_options(list[0], list[1], list[2]);
}

json write_options(const CommunicationOptions& options) {
  const json timeout = options.timeout_seconds ? json(*options.timeout_seconds) : json();
  return {{"options", {options.bytes_per_pack, timeout, to_string(options.implementation)}}};
}

json run_group_by_size(const Case& given) {
  std::vector<std::size_t> bytes;
  for (const json& tensor : given["tensors"]) {
    allow_only(tensor, {"elements", "dtype"}, "a tensor to pack");
    bytes.push_back(tensor.at("elements").get<std::size_t>() * at::elementSize(read_dtype(tensor.at("dtype"))));
  }
  return {{"packs", group_by_size(bytes, given["bytes_per_pack"])}};
}

InputContext read_input_context(const json& context) {
  allow_only(context, {"num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync"}, "an input context");
  return {.num_input_pipelines = context.at("num_input_pipelines"),
          .input_pipeline_id = context.at("input_pipeline_id"),
          .num_replicas_in_sync = context.at("num_replicas_in_sync")};
}

}  // namespace

json run_pack(const Case& given) {
  given.allow_inputs({"method", "tensors", "bytes_per_pack", "sizes", "num_packs", "cross_device_ops",
                      "timeout_seconds", "implementation", "base", "other"});
  const json& method = given["method"];
  if (method == "group_by_size") return run_group_by_size(given);
  if (method == "concat_and_split") {
    return {{"sizes", concat_and_split_sizes(given["sizes"].get<std::vector<std::size_t>>(), given["num_packs"])}};
  }
  if (method == "constructor") {
    read_cross_device_ops(given["cross_device_ops"], given.data.value("num_packs", json()));
    return {{"ok", true}};
  }
  if (method == "options") {
    return write_options(read_options(given["bytes_per_pack"], given["timeout_seconds"], given["implementation"]));
  }
  if (method == "options_merge") return write_options(merge(read_options(given["base"]), read_options(given["other"])));
  unknown_value("method", method);
}

json run_input_context(const Case& given) {
  given.allow_inputs({"method", "input_context", "global_batch_size"});
  const json& method = given["method"];
  if (method == "get_per_replica_batch_size") {
    const auto size = read_input_context(given["input_context"]).get_per_replica_batch_size(given["global_batch_size"]);
    return {{"value", write(size)}};
  }
  if (method == "str") return {{"str", "tf.distribute." + to_string(read_input_context(given["input_context"]))}};
  if (method == "defaults") {
    const InputContext context;
    return {{"input_context", {context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync}}};
  }
  if (method == "value_context_defaults") {
    const ValueContext context;
    return {{"value_context", {context.replica_id_in_sync_group, context.num_replicas_in_sync}}};
  }
  unknown_value("method", method);
}

}  // namespace lockstep::golden
