#include "tests/golden/areas.h"
#include "tests/golden/session.h"
#include "tests/golden/typed.h"

// Areas all_reduce, all_gather and gather: replicas combine their values themselves, or are asked for them.
namespace lockstep::golden {
namespace {

/// Every replica gets its value and calls `collective` with it; returns the results of all.
template <class F>
json in_every_replica(Strategy& strategy, const json& value, F&& collective) {
  Reader reader;
  return with_one_type(
      reader.for_each_replica(value, strategy.num_local_replicas()), [&]<class T>(std::vector<T> each) {
        return write(
            strategy.run([&](const T& mine) { return collective(get_replica_context(), mine); }, PerReplica<T>(each)));
      });
}

/// The gradient of the sum over elements of coefficient * collective(x), computed by each replica for its own x.
template <class F>
json gradients_in_every_replica(Strategy& strategy, const Case& given, F&& collective) {
  Reader reader;
  const int replicas = strategy.num_local_replicas();
  const PerReplica<Nest> values(reader.for_each_replica(given["value"], replicas));
  const PerReplica<Nest> coefficients(reader.for_each_replica(given["coefficients"], replicas));
  return write(strategy.run(
      [&](const Nest& value, const Nest& coefficient) {
        const at::Tensor x = value_as<at::Tensor>(value).clone().set_requires_grad(true);
        const at::Tensor y = collective(get_replica_context(), x);
        (value_as<at::Tensor>(coefficient) * y).sum().backward();
        return x.grad();
      },
      values, coefficients));
}

/// A collective is called for its result or for its gradient.
void require_method(const Case& given, const char* name) {
  if (given["method"] != name && given["method"] != "gradient") unknown_value("method", given["method"]);
}

template <class F>
json run_collective(const Case& given, F&& collective) {
  Strategy& strategy = strategy_for(given);
  if (given["method"] == "gradient") return gradients_in_every_replica(strategy, given, collective);
  return in_every_replica(strategy, given["value"], collective);
}

}  // namespace

json run_all_reduce(const Case& given) {
  given.allow_inputs(
      {"method", "reduce_op", "value", "coefficients", "bytes_per_pack", "cross_device_ops", "num_packs", "rounding"});
  require_method(given, "all_reduce");
  const ReduceOp op = parse_reduce_op(given["reduce_op"].get<std::string>());
  const CommunicationOptions options{.bytes_per_pack = given.data.value("bytes_per_pack", 0)};
  return run_collective(
      given, [&](ReplicaContext& replica, const auto& mine) { return replica.all_reduce(op, mine, options); });
}

json run_all_gather(const Case& given) {
  given.allow_inputs({"method", "axis", "value", "coefficients", "cross_device_ops"});
  require_method(given, "all_gather");
  const std::int64_t axis = given["axis"];
  return run_collective(given,
                        [&](ReplicaContext& replica, const auto& mine) { return replica.all_gather(mine, axis); });
}

json run_gather(const Case& given) {
  given.allow_inputs({"method", "axis", "value", "cross_device_ops"});
  if (given["method"] != "gather") unknown_value("method", given["method"]);
  Strategy& strategy = strategy_for(given);
  const std::int64_t axis = given["axis"];
  const auto gather = [&](const auto& typed) { return strategy.gather(typed, axis); };
  return {{"value", write(map_typed(Reader().nest(given["value"]), gather))}};
}

}  // namespace lockstep::golden
