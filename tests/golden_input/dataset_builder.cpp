#include "tests/golden_input/dataset_builder.h"

#include "lockstep/base/text.h"
#include "lockstep/data/distribute/ceil_split.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/golden_input/files.h"
#include "tests/golden_input/functions.h"
#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

using data::Element;
using data::ElementSpec;
using data::StagePtr;

std::int64_t number(const json& value, const InputContext& context) {
  if (value.is_number_integer()) return value;
  if (value == "$W") return context.num_input_pipelines;
  if (value == "$w") return context.input_pipeline_id;
  if (value == "$w+1") return context.input_pipeline_id + 1;
  if (value == "$N") return context.num_replicas_in_sync;
  if (value.is_object() && value.contains("per_replica"))
    return context.get_per_replica_batch_size(value["per_replica"]);
  golden::unknown_value("number", value);
}

bool drops_remainder(const json& op) {
  const json& last = op.back();
  if (!last.is_object() || last.contains("per_replica")) return false;
  golden::allow_only(last, {"drop_remainder"}, "options of " + op.dump());
  return last["drop_remainder"];
}

StagePtr make_map(StagePtr input, const NamedFunction& function, int parallel_calls = 0) {
  const ElementSpec spec = function.spec(input->element_spec());
  return make_map(std::move(input), function.apply, ElementSpec::unknown(spec.components->size()),
                  data::MapOptions{.parallel_calls = parallel_calls, .spec = function.spec});
}

StagePtr make_flat_map(StagePtr input, data::Expansion expansion, ElementSpec spec) {
  return make_interleave(std::move(input), std::move(expansion), spec, std::nullopt,
                         [spec](const ElementSpec&) { return spec; });
}

StagePtr make_generator(const json& rows, ElementSpec spec) {
  return make_generator(
      [rows]() -> data::Generator {
        return [rows, i = std::size_t{0}](Element& element) mutable {
          if (i == rows.size()) return false;
          element = Element::of(read_tensor(rows[i++], "int64"));
          return true;
        };
      },
      spec, data::GeneratorOptions{.spec = spec});
}

StagePtr apply_op(StagePtr input, const json& op, const InputContext& context) {
  using namespace data;
  const std::string name = op.at(0);
  const auto argument = [&](std::size_t i) { return number(op.at(i), context); };
  if (name == "batch") return make_batch(input, argument(1), BatchOptions{.drop_remainder = drops_remainder(op)});
  if (name == "parallel_batch") {
    return make_batch(input, argument(1), BatchOptions{.drop_remainder = drops_remainder(op), .parallel_calls = 2});
  }
  if (name == "padded_batch")
    return make_padded_batch(input, argument(1), PaddedBatchOptions{.drop_remainder = drops_remainder(op)});
  if (name == "map_and_batch") {
    return make_batch(make_map(input, map_function(op.at(1))), argument(2),
                      BatchOptions{.drop_remainder = drops_remainder(op)});
  }
  if (name == "map") return make_map(input, map_function(op.at(1)));
  if (name == "parallel_map") return make_map(input, map_function(op.at(1)), 2);
  if (name == "map_add") return make_map(input, add_constant(argument(1)));
  if (name == "map_mul") return make_map(input, multiply_by(argument(1)));
  if (name == "filter") return make_filter(input, predicate(op.at(1), op.size() > 2 ? argument(2) : 0));
  if (name == "take_while_lt") return make_take_while(input, predicate("lt", argument(1)));
  if (name == "take") return make_take(input, argument(1));
  if (name == "skip") return make_skip(input, argument(1));
  if (name == "repeat") return make_repeat(input, argument(1));
  if (name == "shuffle") return make_shuffle(input, argument(1));
  if (name == "prefetch") return make_prefetch(input, argument(1));
  if (name == "cache") return make_cache(input);
  if (name == "shard") return make_shard(input, argument(1), argument(2));
  if (name == "shard_hint") return make_shard(input, kShardHint, kShardHint);
  if (name == "unbatch") return make_unbatch(input);
  if (name == "rebatch") {
    const json& sizes = op.at(1);
    return make_rebatch(input,
                        sizes.is_array() ? sizes.get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{sizes},
                        drops_remainder(op));
  }
  if (name == "legacy_rebatch") return make_ceil_split(input, static_cast<int>(argument(1)));
  if (name == "window") {
    const std::int64_t size = argument(1);
    const ElementSpec spec = input->element_spec().batched(PartialShape::kUnknown);
    return make_flat_map(
        make_window(input, size, WindowOptions{}),
        [size](Element&& window) { return make_batch(std::get<StagePtr>(window.components.at(0)), size); }, spec);
  }
  if (name == "flat_map_range") {
    return make_flat_map(
        input, [](Element&& element) { return make_range(0, scalar_of(element)); }, int64_spec({}));
  }
  if (name == "interleave_repeat") {
    const std::int64_t times = argument(3);
    const ElementSpec spec = input->element_spec();
    const auto same = [spec](const ElementSpec&) { return spec; };
    return make_interleave(
        input, [times](Element&& element) { return make_repeat(make_from_tensors(std::move(element)), times); }, spec,
        InterleaveOptions{.cycle_length = static_cast<int>(argument(1)), .block_length = argument(2), .spec = same},
        same);
  }
  if (name == "enumerate") return make_enumerate(input, 0);
  if (name == "assert_cardinality") return make_assert_cardinality(input, argument(1));
  if (name == "unique") return make_distinct(input);
  if (name == "scan_sum") {
    return make_scan(
        input, Element::of(read_tensor(0)),
        [](Element& state, Element& element) {
          state = Element::of(state.tensor(0).add(element.tensor(0)));
          element = state;
        },
        input->element_spec(), [](const ElementSpec& spec) { return spec; });
  }
  golden::unknown_value("stage", op);
}

StagePtr build_source(const json& source, const InputContext& context) {
  if (source.contains("files")) return build_files(source);
  golden::allow_only(
      source, {"range", "slices", "slices_tuple", "tensor", "generator", "generator_batches", "zip", "concatenate"},
      "a source");
  if (source.contains("range")) {
    const json& bounds = source["range"];
    return bounds.is_array() ? data::make_range(bounds.at(0), bounds.at(1))
                             : data::make_range(0, bounds.get<std::int64_t>());
  }
  if (source.contains("slices")) return data::make_slices(read_element(source["slices"]));
  if (source.contains("slices_tuple")) return data::make_slices(read_element({{"tuple", source["slices_tuple"]}}));
  if (source.contains("tensor")) return make_from_tensors(read_element(source["tensor"]));
  if (source.contains("generator")) return make_generator(source["generator"], int64_spec({}));
  if (source.contains("generator_batches")) return make_generator(source["generator_batches"], int64_spec({-1}));
  std::vector<StagePtr> inputs;
  for (const json& input : source.contains("zip") ? source["zip"] : source.at("concatenate")) {
    inputs.push_back(build_dataset(input, context));
  }
  if (source.contains("zip")) return make_zip(std::move(inputs));
  StagePtr joined = inputs.at(0);
  for (std::size_t i = 1; i < inputs.size(); ++i) joined = make_concatenate(joined, inputs[i]);
  return joined;
}

}  // namespace

StagePtr build_dataset(const json& description, const InputContext& context) {
  if (description.contains("per_worker")) {
    return build_dataset(description["per_worker"].at(static_cast<std::size_t>(context.input_pipeline_id)), context);
  }
  golden::allow_only(description, {"source", "ops"}, "a dataset");
  return apply_ops(build_source(description.at("source"), context), description.at("ops"), context);
}

StagePtr apply_ops(StagePtr dataset, const json& ops, const InputContext& context) {
  for (const json& op : ops) dataset = apply_op(std::move(dataset), op, context);
  return dataset;
}

}  // namespace lockstep::golden_input
