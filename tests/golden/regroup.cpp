#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "lockstep/base/text.h"
#include "tests/golden/areas.h"
#include "tests/golden/session.h"
#include "tests/golden/typed.h"

// Areas regroup and values_from_function: replicas' inputs, and how their results are combined.
namespace lockstep::golden {
namespace {

/// The regrouped value, with its local results if the case asks for them.
json regrouped(const Case& given, Strategy& strategy, const Nest& value) {
  json result = {{"value", write(value)}};
  if (given.expect().contains("local_results")) result["local_results"] = write_each(strategy.local_results(value));
  return result;
}

json run_returns(const Case& given, Strategy& strategy) {
  const Variable variable = [&] {
    const auto scope = strategy.scope();
    return Variable(at::ones({}));
  }();
  std::size_t replica = 0;
  Reader reader([&](const json& value) -> std::optional<Nest> {
    if (value.contains("the_variable")) return to_nest(variable);
    if (value.contains("the_variable_component")) return nest_variable(variable).component(replica);
    if (value.contains("the_variable_component_of"))
      return nest_variable(variable).component(value.at("the_variable_component_of"));
    return std::nullopt;
  });
  std::vector<Nest> returns;
  for (; replica < given["returns"].size(); ++replica) returns.push_back(reader.nest(given["returns"][replica]));
  if (returns.size() != static_cast<std::size_t>(given.replicas())) unknown_value("returns", given["returns"]);

  const auto returned =
      strategy.run([&] { return returns[static_cast<std::size_t>(get_replica_context().replica_id_in_sync_group())]; });
  const Nest value = regroup(returned.values());
  if (value.is<Nest::Variable>() && value_as<Nest::Variable>(value).whole != variable.impl()) {
    throw std::runtime_error("regroup gave another variable");
  }
  return regrouped(given, strategy, value);
}

/// The arguments of a function given to run: positional ones as a tuple, named ones as a dict.
struct Arguments {
  Nest args;
  Nest kwargs;
};

Arguments read_arguments(const Case& given) {
  Reader reader;
  return {reader.nest({{"tuple", given["args"]}}), reader.nest({{"dict", given["kwargs"]}})};
}

json run_args(const Case& given, Strategy& strategy) {
  const auto [args, kwargs] = read_arguments(given);
  const auto seen =
      strategy.run([](const Nest& mine, const Nest& named) { return std::pair(mine, named); }, args, kwargs);
  json written = json::array();
  for (const auto& [mine, named] : seen) {
    written.push_back({{"args", write(mine).at("tuple")}, {"kwargs", write(named).at("dict")}});
  }
  return {{"seen", written}};
}

at::Tensor as_tensor(const Nest& value) {
  if (value.is<double>()) return at::full({}, value_as<double>(value), at::kFloat);
  if (value.is<std::int64_t>()) return at::full({}, value_as<std::int64_t>(value), at::kInt);
  return value_as<at::Tensor>(value);
}

Nest call(const std::string& fn, const Nest& args, const Nest& kwargs) {
  const auto argument = [&](std::size_t i, const char* name) -> const Nest& {
    if (i < args.size()) return args[i];
    if (kwargs.size() == 0) throw UnknownForm(str("function ", fn, " needs an argument ", name));
    return kwargs[name];
  };
  if (fn == "id_plus_1") return at::full({}, get_replica_context().replica_id_in_sync_group() + 1, at::kInt);
  if (fn == "identity") return argument(0, "x");
  if (fn == "a_plus_2b_plus_2") {
    return as_tensor(argument(0, "a")) + as_tensor(argument(1, "b")) * 2 + 2;
  }
  const at::Tensor x = as_tensor(argument(0, "x"));
  if (fn == "square") return x * x;
  if (fn == "dict_2x_xx") return Nest::dict({{"a", x * 2}, {"b", x * x}});
  unknown_value("function", fn);
}

json run_fn(const Case& given, Strategy& strategy) {
  const auto [args, kwargs] = read_arguments(given);
  const std::string fn = given["fn"];
  const auto returned =
      strategy.run([&](const Nest& mine, const Nest& named) { return call(fn, mine, named); }, args, kwargs);
  return regrouped(given, strategy, regroup(returned.values()));
}

json run_local_results(const Case& given, Strategy& strategy) {
  const json& value = given["value"];
  if (value.contains("variable")) {
    return {{"local_results", write_each(strategy.local_results(make_variable(value.at("variable"), strategy)))}};
  }
  return {{"local_results", write_each(strategy.local_results(Reader().nest(value)))}};
}

}  // namespace

json run_regroup(const Case& given) {
  given.allow_inputs({"method", "returns", "args", "kwargs", "fn", "value"});
  Strategy& strategy = strategy_for(given);
  const json& method = given["method"];
  if (method == "returns") return run_returns(given, strategy);
  if (method == "run_args") return run_args(given, strategy);
  if (method == "run_fn") return run_fn(given, strategy);
  if (method == "local_results") return run_local_results(given, strategy);
  unknown_value("method", method);
}

json run_values_from_function(const Case& given) {
  given.allow_inputs({"values"});
  Reader reader;
  std::vector<Nest> values;
  for (const json& value : given["values"]) values.push_back(reader.nest(value));
  json contexts = json::array();
  const auto made = strategy_for(given).values_from_function([&](const ValueContext& context) {
    contexts.push_back({context.replica_id_in_sync_group, context.num_replicas_in_sync});
    return values.at(static_cast<std::size_t>(context.replica_id_in_sync_group));
  });
  return {{"value", write(regroup(made.values(), /*always_wrap=*/true))}, {"contexts", contexts}};
}

}  // namespace lockstep::golden
