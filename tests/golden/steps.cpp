#include <ATen/ops/full.h>

#include "tests/golden/areas.h"
#include "tests/golden/outcome.h"
#include "tests/golden/session.h"

// Areas assign, sync_on_read, scatter and update: one variable, and steps that read and write it.
namespace lockstep::golden {
namespace {

VariableValue as_variable_value(const Nest& value) {
  if (value.is<at::Tensor>()) return value_as<at::Tensor>(value);
  if (value.is<std::int64_t>()) return value_as<std::int64_t>(value);
  if (value.is<double>()) return value_as<double>(value);
  if (value.is<bool>()) return c10::Scalar(value_as<bool>(value));
  if (!value.is_distributed()) throw UnknownForm("a variable cannot be given " + brief(write(value)));
  std::vector<at::Tensor> components;
  for (const Nest& component : value.items()) components.push_back(value_as<at::Tensor>(component));
  if (value_as<Nest::Components>(value).mirrored) return Mirrored<at::Tensor>(std::move(components));
  return PerReplica<at::Tensor>(std::move(components));
}

/// A number as a tensor that fits `like`; a tensor unchanged.
at::Tensor as_operand(const Nest& value, const at::Tensor& like) {
  if (value.is<at::Tensor>()) return value_as<at::Tensor>(value);
  if (value.is<std::int64_t>()) return at::full({}, value_as<std::int64_t>(value), like.options().requires_grad(false));
  return at::full({}, value_as<double>(value), like.options().requires_grad(false));
}

ReadBack read_back_of(const json& step) { return step.value("read_value", true) ? ReadBack::Yes : ReadBack::No; }

class Steps {
 public:
  explicit Steps(const Case& given)
      : strategy_(strategy_for(given)), variable_(make_variable(given["variable"], strategy_)) {}

  json run(const json& steps) {
    json result = {{"returns", json::array()}};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      json returned = outcome_of([&] { return run_step(steps[i]); });
      if (returned.contains("error")) {
        result.update(returned);
        result["at_step"] = i;
        result["components"] = write_each(variable_.values());
        return result;
      }
      result["returns"].push_back(std::move(returned));
    }
    result["components"] = write_each(variable_.values());
    result["read_cross"] = outcome_of([&] {
      const auto scope = strategy_.scope();
      return write(variable_.read());
    });
    result["read_replica"] =
        outcome_of([&] { return write_each(strategy_.run([&] { return variable_.read().clone(); })); });
    return result;
  }

 private:
  json run_step(const json& step) {
    allow_only(step, {"context", "method", "value", "read_value", "fn", "args", "kwargs", "group"}, "a step");
    const json& context = step.at("context");
    if (context == "replica") return in_replicas(step);
    if (context == "none") return outside_replicas(step);
    if (context != "cross") unknown_value("context of a step", context);
    const auto scope = strategy_.scope();
    return outside_replicas(step);
  }

  json in_replicas(const json& step) {
    if (step.at("method") == "update") return update_in_replicas(step);
    const PerReplica<Nest> operands(operands_of(step));
    const auto returned = strategy_.run(
        [&](const Nest& operand) { return copied(call(step.at("method"), operand, read_back_of(step))); }, operands);
    return write(returned);
  }

  json outside_replicas(const json& step) {
    const json& method = step.at("method");
    if (method == "set_components") {
      set_components(variable_, step.at("value").at("per_replica"));
      return none();
    }
    if (method == "checkpoint_save") {
      saved_ = variable_.state().clone();
      return {{"value", write(saved_)}};
    }
    if (method == "checkpoint_restore") {
      if (!saved_.defined()) throw UnknownForm("checkpoint_restore without checkpoint_save");
      variable_.load_state(saved_);
      return none();
    }
    if (method == "restore_from_plain") {
      variable_.load_state(read_tensor(step.at("value")));
      return none();
    }
    if (method == "update") return {{"value", update_outside_replicas(step)}};
    return {{"value", write(call(method, operand_of(step), read_back_of(step)))}};
  }

  /// The methods that exist inside and outside of replicas.
  at::Tensor call(const std::string& method, const Nest& operand, ReadBack read_back) {
    if (const auto end = method.find("_in_sync_context"); end != std::string::npos) {
      const SyncOnReadScope sync;
      return call(method.substr(0, end), operand, read_back);
    }
    if (method == "read") return variable_.read();
    if (method == "convert") return at::Tensor(variable_);
    if (method == "all_reduce_sum") return get_replica_context().all_reduce(ReduceOp::Sum, variable_.read());
    if (method == "plus") {
      if (operand.is<at::Tensor>()) return variable_ + value_as<at::Tensor>(operand);
      return variable_ + (operand.is<double>() ? c10::Scalar(value_as<double>(operand))
                                               : c10::Scalar(value_as<std::int64_t>(operand)));
    }
    if (method == "assign") return variable_.assign(as_variable_value(operand), read_back);
    if (method == "assign_add") return variable_.assign_add(as_variable_value(operand), read_back);
    if (method == "assign_sub") return variable_.assign_sub(as_variable_value(operand), read_back);
    if (method == "scatter_add") return variable_.scatter_add(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_sub") return variable_.scatter_sub(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_mul") return variable_.scatter_mul(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_div") return variable_.scatter_div(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_min") return variable_.scatter_min(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_max") return variable_.scatter_max(value_as<IndexedSlices>(operand), read_back);
    if (method == "scatter_update") return variable_.scatter_update(value_as<IndexedSlices>(operand), read_back);
    unknown_value("method of a step", method);
  }

  /// Results of steps are compared at the end: later steps must not change them.
  static at::Tensor copied(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

  Nest operand_of(const json& step) { return step.contains("value") ? reader_.nest(step.at("value")) : Nest(); }

  std::vector<Nest> operands_of(const json& step) {
    const auto replicas = strategy_.num_local_replicas();
    if (!step.contains("value")) return std::vector<Nest>(static_cast<std::size_t>(replicas));
    const json& value = step.at("value");
    if (value.contains("captured_per_replica")) {
      const Nest whole = reader_.nest({{"per_replica", value.at("captured_per_replica")}});
      return std::vector<Nest>(static_cast<std::size_t>(replicas), whole);
    }
    return reader_.for_each_replica(value, replicas);
  }

  /// The effect of the update function `fn` on one component.
  at::Tensor apply(const std::string& fn, at::Tensor component, const Nest& args, const Nest& kwargs) {
    const auto operand = [&] {
      if (args.size() + kwargs.size() != 1) throw UnknownForm("an update function takes one argument");
      return as_operand(args.size() ? args[0] : kwargs.items().front(), component);
    };
    if (fn == "assign") return component.copy_(operand());
    if (fn == "assign_add") return component.add_(operand());
    if (fn == "assign_sub") return component.sub_(operand());
    if (fn == "add_own_value_twice") return component.add_(variable_.read() * 2);
    if (fn == "return_sum") return component + operand();
    unknown_value("update function", fn);
  }

  Nest kwargs_of(const json& step) { return reader_.nest({{"dict", step.value("kwargs", json::object())}}); }

  json update_outside_replicas(const json& step) {
    const std::string fn = step.at("fn");
    const Nest args = reader_.nest({{"tuple", step.at("args")}});
    if (fn == "return_none") {
      strategy_.extended().update(
          variable_, [](const at::Tensor&, const Nest&) {}, args);
      return none();
    }
    const auto updated = strategy_.extended().update(
        variable_,
        [&](at::Tensor component, const Nest& mine, const Nest& named) { return apply(fn, component, mine, named); },
        args, kwargs_of(step));
    if (!step.value("group", true)) return {{"tuple", write_each(updated)}};
    return write(updated);
  }

  json update_in_replicas(const json& step) {
    const std::string fn = step.at("fn");
    const json& args_of_replicas = step.at("args").at("per_replica");
    std::vector<Nest> args;
    for (const json& args_of_one : args_of_replicas) args.push_back(reader_.nest({{"tuple", args_of_one}}));
    const Nest kwargs = kwargs_of(step);
    if (fn == "return_none") {
      strategy_.run(
          [&](const Nest& mine) {
            strategy_.extended().update(
                variable_, [](const at::Tensor&, const Nest&) {}, mine);
          },
          PerReplica<Nest>(args));
      return {{"per_replica", json(args.size(), none())}};
    }
    const auto returned = strategy_.run(
        [&](const Nest& mine) {
          const auto updated = strategy_.extended().update(
              variable_,
              [&](at::Tensor component, const Nest& its, const Nest& named) {
                return apply(fn, component, its, named);
              },
              mine, kwargs);
          return updated.get().clone();
        },
        PerReplica<Nest>(args));
    return write(returned);
  }

  Reader reader_;
  Strategy& strategy_;
  Variable variable_;
  at::Tensor saved_;
};

}  // namespace

json run_steps(const Case& given) {
  given.allow_inputs({"variable", "steps", "rounding"});
  return Steps(given).run(given["steps"]);
}

}  // namespace lockstep::golden
