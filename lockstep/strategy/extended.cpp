#include "lockstep/strategy/extended.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/fail_together.h"
#include "lockstep/strategy/multi_worker_strategy.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"

namespace lockstep {

/// Any thread may ask and add.
class StrategyExtended::Containers {
 public:
  /// Returns how many have been added, without copies.
  int add(const Variable& variable) {
    const std::lock_guard lock(mutex_);
    if (variables_.size() >= sweep_at_) {
      std::erase_if(variables_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = std::max<std::size_t>(64, 2 * variables_.size());
    }
    for (const auto& component : variable.values()) variables_[component.unsafeGetTensorImpl()] = variable.impl();
    return variable.impl()->is_copy() ? count_ : ++count_;
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

  /// Null if it is no component, or if its variable is gone.
  std::shared_ptr<Variable::Impl> find(const at::Tensor& component) const {
    const std::lock_guard lock(mutex_);
    const auto found = variables_.find(component.unsafeGetTensorImpl());
    return found == variables_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable std::mutex mutex_;
  int count_ = 0;
  std::size_t sweep_at_ = 64;  ///< entries of variables that are gone are removed when there are this many
  std::unordered_map<const void*, std::weak_ptr<Variable::Impl>> variables_;  ///< by component
};

StrategyExtended::StrategyExtended(Strategy& strategy)
    : strategy_(strategy), containers_(std::make_unique<Containers>()) {}
StrategyExtended::~StrategyExtended() = default;

Mirrored<at::Tensor> StrategyExtended::reduce_to(ReduceOp op, const PerReplica<at::Tensor>& value,
                                                 const Destinations& destinations,
                                                 const CommunicationOptions& options) {
  return std::move(batch_reduce_to(op, std::vector<ReducePair>{{value, destinations}}, options)[0]);
}

Mirrored<at::Tensor> StrategyExtended::reduce_to(ReduceOp op, const Mirrored<at::Tensor>& value,
                                                 const Destinations& destinations, const CommunicationOptions&) {
  detail::require_cross_replica(strategy_, "reduce_to");
  destinations.resolve(strategy_);
  strategy_.reduce(op, value);  // refuses SUM
  return value;
}

Mirrored<at::Tensor> StrategyExtended::reduce_to(ReduceOp op, const at::Tensor& value, const Destinations& destinations,
                                                 const CommunicationOptions&) {
  detail::require_cross_replica(strategy_, "reduce_to");
  const Devices to = destinations.resolve(strategy_);
  return placed(strategy_.cross_device_ops().broadcast(strategy_.reduce(op, value), to), to);
}

Mirrored<at::Tensor> StrategyExtended::reduce_to(ReduceOp op, const Variable& value, const Destinations& destinations,
                                                 const CommunicationOptions& options) {
  const auto& components = strategy_.components_of(value, "reduce_to");
  if (value.synchronization() == Synchronization::OnRead)
    return reduce_to(op, PerReplica<at::Tensor>(components), destinations, options);
  return reduce_to(op, Mirrored<at::Tensor>(components), destinations, options);
}

Mirrored<IndexedSlices> StrategyExtended::reduce_to(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                                    const Destinations& destinations,
                                                    const CommunicationOptions& options) {
  detail::require_cross_replica(strategy_, "reduce_to");
  return detail::or_fail_together(strategy_, "reduce_to", [&] {
    for (const auto& rows : value) check_indexed_slices(rows, "reduce_to");
    const Devices to = destinations.resolve(strategy_);
    const auto merged = detail::StrategyAccess::options_of_call(strategy_, options);
    return placed(strategy_.cross_device_ops().reduce_slices(op, value, to, merged), to);
  });
}

StrategyExtended::ReduceValue::ReduceValue(PerReplica<at::Tensor> value) : components_(std::move(value).values()) {}
StrategyExtended::ReduceValue::ReduceValue(Mirrored<at::Tensor> value)
    : is_mirrored_(true), placement_(value.placement()) {
  components_ = std::move(value).values();
}
StrategyExtended::ReduceValue::ReduceValue(const Variable& variable)
    : components_(variable.values()),
      is_mirrored_(variable.synchronization() != Synchronization::OnRead),
      variable_(variable) {}

std::vector<Mirrored<at::Tensor>> StrategyExtended::batch_reduce_to(ReduceOp op, const std::vector<ReducePair>& pairs,
                                                                    const CommunicationOptions& options) {
  detail::require_cross_replica(strategy_, "batch_reduce_to");
  require_op(op, "reduce_to");
  const auto reduce_all = [&] {
    std::vector<std::optional<Mirrored<at::Tensor>>> results(pairs.size());
    std::vector<CrossDeviceOps::Job> jobs;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto& [value, destinations] = pairs[i];
      if (value.variable_) strategy_.components_of(*value.variable_, "batch_reduce_to");
      if (value.is_mirrored_) {
        Mirrored<at::Tensor> mirrored(value.components_);
        mirrored.set_placement(value.placement_);
        results[i] = reduce_to(op, mirrored, destinations, options);
        continue;
      }
      PerReplica<at::Tensor> components(value.components_);
      require_summable(components[0], "reduce_to");
      require_equal_form(components.values(), "reduce_to");
      jobs.emplace_back(std::move(components), destinations.resolve(strategy_));
      places.push_back(i);
    }
    const auto merged = detail::StrategyAccess::options_of_call(strategy_, options);
    auto& ops = strategy_.cross_device_ops();
    auto reduced = jobs.size() == 1 ? std::vector{ops.reduce(op, jobs[0].first, jobs[0].second, merged)}
                                    : ops.batch_reduce(op, jobs, merged);
    for (std::size_t j = 0; j < places.size(); ++j)
      results[places[j]] = placed(std::move(reduced.at(j)), std::move(jobs[j].second));
    std::vector<Mirrored<at::Tensor>> all;
    all.reserve(results.size());
    for (auto& result : results) all.push_back(std::move(*result));
    return all;
  };
  return detail::or_fail_together(strategy_, "batch_reduce_to", reduce_all);
}

std::vector<Mirrored<at::Tensor>> StrategyExtended::batch_reduce_to(ReduceOp op,
                                                                    std::initializer_list<ReducePair> pairs,
                                                                    const CommunicationOptions& options) {
  return batch_reduce_to(op, std::vector<ReducePair>(pairs), options);
}

std::vector<Mirrored<IndexedSlices>> StrategyExtended::batch_reduce_to(ReduceOp op,
                                                                       const std::vector<SparseReducePair>& pairs,
                                                                       const CommunicationOptions& options) {
  detail::require_cross_replica(strategy_, "batch_reduce_to");
  require_op(op, "reduce_to");
  std::vector<Mirrored<IndexedSlices>> results;
  for (const auto& [value, destinations] : pairs) results.push_back(reduce_to(op, value, destinations, options));
  return results;
}

Mirrored<at::Tensor> StrategyExtended::broadcast_to(const at::Tensor& tensor, const Destinations& destinations) {
  detail::require_cross_replica(strategy_, "broadcast_to");
  if (!tensor.defined()) {
    throw InvalidArgument(errors::kNotReducible, {.what = "an undefined tensor cannot be broadcast",
                                                  .where = "broadcast_to",
                                                  .help = "pass a defined tensor, for instance torch::zeros({})"});
  }
  const Devices to = destinations.resolve(strategy_);
  return placed(strategy_.cross_device_ops().broadcast(tensor, to), to);
}

Mirrored<IndexedSlices> StrategyExtended::broadcast_to(const IndexedSlices& rows, const Destinations& destinations) {
  check_indexed_slices(rows, "broadcast_to");
  const auto values = broadcast_to(rows.values, destinations);
  const auto indices = broadcast_to(rows.indices, destinations);
  return values.at_my_place(Mirrored<IndexedSlices>::generate(values.size(), [&](std::size_t k) {
    return IndexedSlices{.values = values[k], .indices = indices[k], .dense_shape = rows.dense_shape};
  }));
}

c10::Scalar StrategyExtended::broadcast_to(const c10::Scalar& number, const Destinations& destinations) {
  detail::require_cross_replica(strategy_, "broadcast_to");
  destinations.resolve(strategy_);
  return number;
}

Devices StrategyExtended::non_slot_devices(const std::vector<Variable>&) const { return strategy_.devices(); }

std::vector<int> StrategyExtended::replicas_on(const Devices& devices) const {
  if (devices.empty() || devices.size() > strategy_.devices().size()) {
    throw InvalidArgument(errors::kDestination,
                          {.what = str("update_non_slot needs between 1 and ", strategy_.devices().size(),
                                       " devices, got ", devices.size()),
                           .help = "pass what non_slot_devices() returns"});
  }
  std::vector<int> replicas;
  for (const std::string& device : devices) {
    const Devices name{to_string(canonicalize(device, strategy_.devices()[0]))};
    const int replica = place_on(name, strategy_.devices())->replicas[0];
    const bool doubled = std::find(replicas.begin(), replicas.end(), replica) != replicas.end();
    if (replica < 0 || doubled) {
      throw InvalidArgument(
          errors::kDevice,
          {.what = str("'", device, doubled ? "' is named twice" : "' is not a device of this strategy"),
           .where = "update_non_slot",
           .help = "pass what non_slot_devices() returns"});
    }
    replicas.push_back(replica);
  }
  return replicas;
}

void StrategyExtended::require_one_variable(const PerReplica<Variable>& variables) {
  for (std::size_t k = 1; k < variables.size(); ++k) {
    if (variables[k].is_same(variables[0])) continue;
    throw FailedPrecondition(errors::kDifferentCollective,
                             {.what = "replicas update different variables at the same point",
                              .where = "update",
                              .seen = str(detail::replica_name(0), ": '", variables[0].name(), "', ",
                                          detail::replica_name(k), ": '", variables[k].name(), "'"),
                              .help = "make the same updates in the same order on every replica"});
  }
}

void StrategyExtended::require_own(const Variable& variable, const char* operation) const {
  if (variable.is_distributed() ? &variable.strategy() == &strategy_ : strategy_.is_default()) return;
  throw InvalidArgument(errors::kMixedStrategies,
                        {.what = str(operation, " needs a variable of this strategy"),
                         .where = operation,
                         .seen = str("variable '", variable.name(), "' belongs to another strategy or to none"),
                         .help = "create it while this strategy's scope() is open"});
}

void StrategyExtended::refuse_divergence(const char* operation) const {
  if (!strategy_.strict()) return;
  throw InvalidArgument(errors::kVariableAssign,
                        {.what = "the value must be Mirrored: a PerReplica would make the components differ",
                         .where = operation,
                         .help = "reduce it first, or make the strategy with .strict = false"});
}

std::optional<Variable> StrategyExtended::value_container(const at::Tensor& component) const {
  const auto impl = containers_->find(component);
  return impl ? std::optional<Variable>(Variable(impl)) : std::nullopt;
}

bool StrategyExtended::variable_created_in_scope(const Variable& variable) const {
  return variable.is_distributed() && &variable.strategy() == &strategy_;
}

int StrategyExtended::remember(const Variable& variable) { return containers_->add(variable); }

bool StrategyExtended::has_made_variables() const { return containers_->count() > 0; }

StrategyExtended::ColocateScope StrategyExtended::colocate_vars_with(const Variable& variable) {
  detail::require_current_strategy(strategy_, "colocate_vars_with");
  require_own(variable, "colocate_vars_with");
  return ColocateScope(variable);
}

namespace {

[[noreturn]] void throw_no_devices(const char* what) {
  throw FailedPrecondition(errors::kWrongContext, {.what = str("the default strategy has no ", what),
                                                   .help = "make a MirroredStrategy and ask it"});
}

}  // namespace

bool StrategyExtended::experimental_between_graph() const {
  return dynamic_cast<const MultiWorkerMirroredStrategy*>(&strategy_) != nullptr;
}

const Devices& StrategyExtended::parameter_devices() const {
  if (strategy_.is_default()) throw_no_devices("parameter_devices");
  return strategy_.devices();
}

const Devices& StrategyExtended::worker_devices() const {
  if (strategy_.is_default()) throw_no_devices("worker_devices");
  return strategy_.devices();
}

}  // namespace lockstep
