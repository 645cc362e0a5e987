#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

#include "tests/golden/json_value.h"
#include "tests/golden/reference.h"
#include "tests/golden/typed.h"

namespace lockstep::golden {
namespace {

using Tensors = std::vector<at::Tensor>;

/// The rules of variables in a few lines, without threads, contexts or errors except for the one about NONE.
class Model {
 public:
  Model(const json& variable, int replicas)
      : on_read_(variable.at("synchronization") == "ON_READ"),
        aggregation_(variable.at("aggregation")),
        components_(static_cast<std::size_t>(replicas), read_tensor(variable.at("initial"))) {}

  json run(const json& steps) {
    json result = {{"returns", json::array()}};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (needs_aggregate(steps[i]) && !aggregate()) {
        result.update({{"error", "ValueError"}, {"at_step", i}, {"components", write_each(components_)}});
        return result;
      }
      result["returns"].push_back(run_step(steps[i]));
    }
    result["components"] = write_each(components_);
    const auto total = aggregate();
    result["read_cross"] = total ? write(*total) : json{{"error", "ValueError"}};
    result["read_replica"] = write_each(components_);
    return result;
  }

 private:
  static bool is_in(const json& step, const char* context) { return step.at("context") == context; }

  static bool needs_aggregate(const json& step) {
    const json& method = step.at("method");
    if (method == "plus_in_sync_context" || method == "convert_in_sync_context" || method == "checkpoint_save")
      return true;
    if (method == "read" || method == "plus" || method == "convert") return !is_in(step, "replica");
    const bool assigns = method == "assign" || method == "assign_add" || method == "assign_sub";
    return assigns && !is_in(step, "replica") && step.value("read_value", true);
  }

  /// The result of reading outside of replicas; nothing if it cannot be read.
  std::optional<at::Tensor> aggregate() const {
    if (!on_read_ || aggregation_ == "ONLY_FIRST_REPLICA") return components_[0];
    if (aggregation_ == "NONE") return std::nullopt;
    const std::vector<Nest> nests(components_.begin(), components_.end());
    return value_as<at::Tensor>(reduced(aggregation_ == "SUM" ? ReduceOp::Sum : ReduceOp::Mean, nests));
  }

  json run_step(const json& step) {
    const std::string method = step.at("method");
    if (method == "set_components") {
      for (std::size_t k = 0; k < components_.size(); ++k)
        components_[k] = read_tensor(step.at("value").at("per_replica")[k]);
      return none();
    }
    if (method == "checkpoint_save") {
      saved_ = *aggregate();
      return {{"value", write(saved_)}};
    }
    if (method == "checkpoint_restore" || method == "restore_from_plain") {
      set_all(method == "checkpoint_restore" ? saved_ : read_tensor(step.at("value")));
      return none();
    }
    if (method == "plus_in_sync_context" || method == "convert_in_sync_context") {
      const auto operands = operands_of(step);
      Tensors results(components_.size(), *aggregate());
      if (method == "plus_in_sync_context") {
        for (std::size_t k = 0; k < results.size(); ++k) results[k] = results[k] + operands[k];
      }
      return {{"per_replica", write_each(results)}};
    }
    return is_in(step, "replica") ? in_replicas(step, method) : outside_replicas(step, method);
  }

  json in_replicas(const json& step, const std::string& method) {
    if (method == "read" || method == "convert") return {{"per_replica", write_each(components_)}};
    auto operands = operands_of(step);
    if (method == "plus") {
      for (std::size_t k = 0; k < operands.size(); ++k) operands[k] = components_[k] + operands[k];
      return {{"per_replica", write_each(operands)}};
    }
    if (!on_read_ && aggregation_ != "NONE") {
      const bool reduce = step.at("value").contains("per_replica") && aggregation_ != "ONLY_FIRST_REPLICA";
      const std::vector<Nest> nests(operands.begin(), operands.end());
      const auto one =
          reduce ? value_as<at::Tensor>(reduced(aggregation_ == "SUM" ? ReduceOp::Sum : ReduceOp::Mean, nests))
                 : operands[0];
      operands.assign(operands.size(), one);
    }
    for (std::size_t k = 0; k < operands.size(); ++k) components_[k] = assigned(method, components_[k], operands[k]);
    return {{"per_replica", step.value("read_value", true) ? write_each(components_) : json(operands.size(), none())}};
  }

  json outside_replicas(const json& step, const std::string& method) {
    if (method == "assign") {
      set_all(operands_of(step)[0]);
    } else if (method == "assign_add" || method == "assign_sub") {
      for (auto& component : components_) component = assigned(method, component, operands_of(step)[0]);
    } else if (method == "plus") {
      return {{"value", write(*aggregate() + operands_of(step)[0])}};
    } else if (method != "read" && method != "convert") {
      unknown_value("method of a step", method);
    }
    return {{"value", step.value("read_value", true) ? write(*aggregate()) : none()}};
  }

  static at::Tensor assigned(const std::string& method, const at::Tensor& component, const at::Tensor& operand) {
    if (method == "assign") return operand;
    if (method == "assign_add") return component + operand;
    if (method == "assign_sub") return component - operand;
    unknown_value("method of a step", method);
  }

  /// A value for the whole variable: a sum is divided, and the remainder of integers goes to component 0.
  void set_all(const at::Tensor& value) {
    const auto n = static_cast<std::int64_t>(components_.size());
    components_.assign(components_.size(), value);
    if (!on_read_ || aggregation_ != "SUM") return;
    const at::Tensor share = value.is_floating_point() ? value / static_cast<double>(n) : at::div(value, n, "trunc");
    components_.assign(components_.size(), share);
    if (!value.is_floating_point()) components_[0] = value - share * (n - 1);
  }

  Tensors operands_of(const json& step) const {
    if (!step.contains("value")) return Tensors(components_.size());
    Tensors operands;
    Reader reader;
    for (const Nest& value : reader.for_each_replica(step.at("value"), static_cast<int>(components_.size()))) {
      const auto options = components_[0].options();
      operands.push_back(value.is<double>()         ? at::full({}, value_as<double>(value), options)
                         : value.is<std::int64_t>() ? at::full({}, value_as<std::int64_t>(value), options)
                                                    : value_as<at::Tensor>(value));
    }
    return operands;
  }

  bool on_read_;
  std::string aggregation_;
  Tensors components_;
  at::Tensor saved_;
};

}  // namespace

json expected_of_steps(const Case& given) { return Model(given["variable"], given.replicas()).run(given["steps"]); }

}  // namespace lockstep::golden
