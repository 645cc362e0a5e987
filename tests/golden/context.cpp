#include "lockstep/strategy/context.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "tests/golden/areas.h"
#include "tests/golden/session.h"

// Area context: a thread's context, and which calls it allows.
namespace lockstep::golden {
namespace {

/// [1], [2], ...: one component per replica.
PerReplica<at::Tensor> counting(int replicas) {
  return PerReplica<at::Tensor>::generate(static_cast<std::size_t>(replicas), [](std::size_t k) {
    return at::full({1}, static_cast<double>(k + 1), at::kFloat);
  });
}

Variable mirrored_two(Strategy& strategy) {
  const auto scope = strategy.scope();
  return Variable(at::full({}, 2.0, at::kFloat));
}

class Asked {
 public:
  explicit Asked(const Case& given)
      : given_(given),
        strategy_(strategy_for(given)),
        other_(other_strategy_for(given)),
        p_(counting(given.replicas())),
        v_(mirrored_two(strategy_)),
        updated_(mirrored_two(strategy_)) {}

  /// Enters the context, queries there, and returns the answer; if several answer, the last one's.
  json answer() {
    const json& where = given_["where"];
    json result;
    if (where == "default") {
      result = ask();
    } else if (where == "scope") {
      const auto scope = strategy_.scope();
      result = ask();
    } else if (where == "other_scope") {
      const auto scope = other_.scope();
      result = ask();
    } else if (where == "replica") {
      result = strategy_.run([&] { return ask(); })[static_cast<std::size_t>(given_.replicas()) - 1];
    } else if (where == "merge_fn") {
      strategy_.run([&] { get_replica_context().merge_call([&](Strategy&) { result = ask(); }); });
    } else if (where == "update") {
      strategy_.extended().update(updated_, [&](const at::Tensor&) { result = ask(); });
    } else if (where == "update_in_replica") {
      strategy_.run([&] { strategy_.extended().update(updated_, [&](const at::Tensor&) { result = ask(); }); });
    } else if (where == "default_scope") {
      const auto scope = get_strategy().scope();
      result = ask();
    } else if (where == "default_run") {
      result = get_strategy().run([&] { return ask(); })[0];
    } else if (where == "default_merge_fn") {
      get_replica_context().merge_call([&](Strategy&) { result = ask(); });
    } else {
      unknown_value("context", where);
    }
    return result;
  }

 private:
  json ask() {
    if (given_.has("query")) {
      if (given_["query"] != "state") unknown_value("query", given_["query"]);
      return {{"state", state()}};
    }
    return {{"value", call(given_["call"])}};
  }

  json state() const {
    const bool cross = in_cross_replica_context();
    const Strategy& current = get_strategy();
    return {{"has_strategy", has_strategy()},
            {"in_cross_replica_context", cross},
            {"replica_id", cross ? json() : json(get_replica_context().replica_id_in_sync_group())},
            {"current", &current == &strategy_ ? "this"
                        : &current == &other_  ? "other"
                        : current.is_default() ? "default"
                                               : "unknown"},
            {"update_replica_id", cross && current_component() >= 0 ? json(current_component()) : json()}};
  }

  /// The current replica context, or replica 0's if there is none.
  ReplicaContext& replica() {
    return in_cross_replica_context() ? strategy_.replica_context(0) : get_replica_context();
  }

  json call(const std::string& name) {
    StrategyExtended& extended = strategy_.extended();
    const at::Tensor one = at::ones({1});
    if (name == "run") return write(strategy_.run([](const at::Tensor& mine) { return mine + 1; }, p_)[0]);
    if (name == "reduce") return write(strategy_.reduce(ReduceOp::Sum, p_));
    if (name == "reduce_to") return write(extended.reduce_to(ReduceOp::Sum, p_, strategy_.devices()[0])[0]);
    if (name == "batch_reduce_to") {
      return write(extended.batch_reduce_to(ReduceOp::Sum, {{p_, strategy_.devices()[0]}}).at(0)[0]);
    }
    if (name == "broadcast_to") return write(extended.broadcast_to(one, strategy_.devices()[0])[0]);
    if (name == "gather") return write(strategy_.gather(p_, 0));
    if (name == "update") {
      extended.update(v_, [](at::Tensor component) { component.add_(1); });
      return write(v_.values()[0]);
    }
    if (name == "update_non_slot") {
      extended.update_non_slot(extended.non_slot_devices({v_}), [] {});
      return none();
    }
    if (name == "merge_call") return write(replica().merge_call([](Strategy&) { return 7.0; }));
    if (name == "all_reduce") return write(replica().all_reduce(ReduceOp::Sum, one));
    if (name == "all_gather") return write(replica().all_gather(one, 0));
    if (name == "per_replica_to_tensor") return write(static_cast<const at::Tensor&>(p_));
    if (name == "mirrored_variable_to_tensor") return write(at::Tensor(v_));
    if (name == "variable_handle") {
      if (!v_.handle().defined()) throw std::runtime_error("the handle is empty");
      return none();
    }
    if (name == "local_results") return write(strategy_.local_results(p_).at(0));
    if (name == "values_from_function") {
      const auto ids =
          strategy_.values_from_function([](const ValueContext& context) { return context.replica_id_in_sync_group; });
      return write(static_cast<std::int64_t>(ids[0]));
    }
    if (name == "colocate_vars_with") {
      const auto colocated = extended.colocate_vars_with(v_);
      return none();
    }
    if (name == "scope") {
      const auto scope = strategy_.scope();
      return none();
    }
    unknown_value("call", name);
  }

  const Case& given_;
  Strategy& strategy_;
  Strategy& other_;
  PerReplica<at::Tensor> p_;
  Variable v_;
  Variable updated_;
};

}  // namespace

json run_context(const Case& given) {
  given.allow_inputs({"where", "query", "call"});
  return Asked(given).answer();
}

}  // namespace lockstep::golden
