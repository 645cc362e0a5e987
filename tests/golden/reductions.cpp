#include "tests/golden/areas.h"
#include "tests/golden/session.h"
#include "tests/golden/typed.h"

// Areas reduce, reduce_axis, batch_reduce and broadcast: values of all replicas, combined from outside.
namespace lockstep::golden {
namespace {

Axis read_axis(const json& axis) {
  if (axis.is_null()) return {};
  if (axis.is_number_integer()) return axis.get<std::int64_t>();
  if (axis.is_array()) return axis.get<std::vector<std::int64_t>>();
  unknown_value("axis", axis);
}

int components_of(const Nest& value) { return value.is_distributed() ? static_cast<int>(value.size()) : 1; }

/// Calls `f` with the value in the type that a program would use; variables count as values.
template <class F>
Nest map_typed_or_variable(const json& value, Strategy& strategy, F&& f) {
  if (value.contains("variable")) return to_nest(f(make_variable(value.at("variable"), strategy)));
  return map_typed(Reader().nest(value), f);
}

Nest run_reduce_to(const Case& given, ReduceOp op, Strategy& strategy) {
  const json& value = given["value"];
  const int components =
      value.contains("variable") ? strategy.num_local_replicas() : components_of(Reader().nest(value));
  const Destinations destinations = read_destinations(given["destinations"], strategy, components);
  StrategyExtended& extended = strategy.extended();
  const auto reduce_to = [&](const auto& typed) requires requires { extended.reduce_to(op, typed, destinations); }
  { return extended.reduce_to(op, typed, destinations); };
  const Nest result = map_typed_or_variable(value, strategy, reduce_to);
  // TensorFlow returns a plain value unchanged; here every destination gets it.
  const bool is_plain_everywhere = is_tensor(value) && !difference(value, write(Nest::per_replica(result.items())));
  return is_plain_everywhere ? result[0] : result;
}

}  // namespace

json run_reduce(const Case& given) {
  given.allow_inputs({"method", "reduce_op", "axis", "axis_container", "value", "destinations", "rounding"});
  const json& method = given["method"];
  if (method != "reduce" && method != "reduce_to") unknown_value("method", method);
  const ReduceOp op = parse_reduce_op(given["reduce_op"].get<std::string>());
  Strategy& strategy = strategy_for(given);
  if (method == "reduce_to") return {{"value", write(run_reduce_to(given, op, strategy))}};
  const Axis axis = read_axis(given["axis"]);
  return {{"value", write(map_typed_or_variable(given["value"], strategy,
                                                [&](const auto& typed) { return strategy.reduce(op, typed, axis); }))}};
}

json run_batch_reduce(const Case& given) {
  given.allow_inputs({"reduce_op", "destinations", "values", "cross_device_ops", "num_packs", "rounding"});
  const ReduceOp op = parse_reduce_op(given["reduce_op"].get<std::string>());
  Strategy& strategy = strategy_for(given);
  StrategyExtended& extended = strategy.extended();

  // A batch has dense values only; sparse ones are reduced one by one.
  std::vector<StrategyExtended::ReducePair> batch;
  std::vector<std::size_t> batch_places;
  std::vector<StrategyExtended::SparseReducePair> sparse;
  std::vector<std::size_t> sparse_places;
  json values = json::array();
  Reader reader;
  for (const json& value : given["values"]) {
    const Nest read = reader.nest(value);
    const Destinations destinations = read_destinations(given["destinations"], strategy, components_of(read));
    const auto components = read.is_distributed() ? read.items() : std::vector<Nest>{read};
    if (all_are<IndexedSlices>(components)) {
      sparse.emplace_back(PerReplica<IndexedSlices>(each_as<IndexedSlices>(components)), destinations);
      sparse_places.push_back(values.size());
      values.push_back(nullptr);
    } else {
      if (!all_are<at::Tensor>(components)) throw UnknownForm("a batch cannot have " + brief(value));
      batch.emplace_back(PerReplica<at::Tensor>(each_as<at::Tensor>(components)), destinations);
      batch_places.push_back(values.size());
      values.push_back(nullptr);
    }
  }
  const auto reduced = extended.batch_reduce_to(op, batch);
  for (std::size_t i = 0; i < batch_places.size(); ++i) values[batch_places[i]] = write(reduced.at(i));
  const auto rows = extended.batch_reduce_to(op, sparse);
  for (std::size_t i = 0; i < sparse_places.size(); ++i) values[sparse_places[i]] = write(rows.at(i));
  return {{"values", values}};
}

json run_broadcast(const Case& given) {
  given.allow_inputs({"destinations", "value"});
  Strategy& strategy = strategy_for(given);
  StrategyExtended& extended = strategy.extended();
  const Nest value = Reader().nest(given["value"]);
  const Destinations destinations = read_destinations(given["destinations"], strategy, components_of(value));
  const auto broadcast = [&](const auto& typed) requires requires { extended.broadcast_to(typed, destinations); }
  { return extended.broadcast_to(typed, destinations); };
  return {{"value", write(map_typed(value, broadcast))}};
}

}  // namespace lockstep::golden
