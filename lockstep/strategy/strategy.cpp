#include "lockstep/strategy/strategy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <ostream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/detail/strategy_local.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/local_replicas.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"
#include "lockstep/values/type_name.h"

// What a strategy is, and what all of its workers have in common. strategy_run.cpp has run, strategy_reduce.cpp reduce and gather.
namespace lockstep {
namespace {

std::atomic<int> strategies_of_several_workers{0};

std::shared_ptr<CrossDeviceOps> chosen_for(const std::vector<DeviceName>& devices) {
  if (are_mixed(torch_devices(devices))) return std::make_shared<ReductionToOneDevice>();
  return default_cross_device_ops();
}

}  // namespace

Strategy::Strategy(Parts parts)
    : num_replicas_in_sync_(static_cast<int>(parts.devices.size()) * (parts.workers ? parts.workers->workers() : 1)),
      num_local_replicas_(static_cast<int>(parts.devices.size())),
      worker_id_(parts.workers ? parts.workers->rank() : 0),
      workers_(std::move(parts.workers)),
      cross_device_ops_(parts.cross_device_ops ? std::move(parts.cross_device_ops) : chosen_for(parts.devices)),
      communication_(validated(parts.communication)),
      strict_(parts.strict),
      device_kinds_(kinds_of(torch_devices(parts.devices))),
      extended_(std::make_unique<StrategyExtended>(*this)),
      runs_(std::make_unique<detail::Runs>()),
      locals_(std::make_unique<detail::LocalValues>()),
      alive_(std::make_shared<Strategy*>(this)) {
  const std::vector<at::Device> of_replicas = torch_devices(parts.devices);
  for (std::size_t k = 0; k < parts.devices.size(); ++k) {
    devices_.push_back(to_string(parts.devices[k]));
    contexts_.push_back(std::make_unique<ReplicaContext>(*this, static_cast<int>(k),
                                                         worker_id_ * num_local_replicas_ + static_cast<int>(k),
                                                         of_replicas[k], devices_.back()));
  }
  if (workers_) ++strategies_of_several_workers;
  detail::enter_speaker(*this);
}

Strategy::~Strategy() {
  replicas_.reset();
  detail::leave_speaker(*this);
  if (workers_) --strategies_of_several_workers;
  detail::forget_strategy(*this);
}

bool workers::are_several() { return strategies_of_several_workers > 0; }

const std::optional<RunFailure>& Strategy::last_failure() const { return runs_->last_failure; }

ReplicaContext& Strategy::replica_context(int local_index) {
  return *contexts_.at(static_cast<std::size_t>(local_index));
}

void Strategy::barrier(const std::source_location& where) {
  detail::require_cross_replica(*this, "barrier");
  const detail::CallPlace place(where);
  if (workers_) workers_->barrier(str("barrier (", detail::CallPlace::current(), ")"), deadline_of(communication_));
}

at::Tensor Strategy::broadcast(const at::Tensor& value, const std::source_location& where) {
  detail::require_cross_replica(*this, "broadcast");
  const detail::OneThread one(detail::collective_thread(*this), "broadcast");
  const detail::CallPlace place(where);
  return workers_ ? workers::broadcast(*workers_, value, "broadcast", deadline_of(communication_)) : value.clone();
}

Strategy::Leaves Strategy::broadcast_leaves(const Leaves& leaves, const std::string* structure,
                                            const std::source_location& where) {
  detail::require_cross_replica(*this, "broadcast");
  const detail::CallPlace place(where);
  if (workers_ && structure != nullptr) {
    // A worker with fewer leaves would return at once and leave the others waiting.
    workers::require_same(
        *workers_,
        {.what = "the structure to broadcast",
         .lines = {*structure},
         .number = errors::kStructure,
         .help = "give broadcast the same structure on every worker: broadcast its size first and "
                 "make one of that size, or pass a std::vector of tensors or numbers, which takes the "
                 "chief's size"},
        "broadcast of a structure", deadline_of(communication_));
  }
  Leaves results;
  for (const ReducibleLeaf& leaf : leaves) {
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf)) {
      results.emplace_back(broadcast(*tensor, where));
      continue;
    }
    const auto& rows = std::get<IndexedSlices>(leaf);
    const at::Tensor shape = broadcast(at::tensor(rows.dense_shape, at::kLong), where);
    const auto* const sizes = const_data<std::int64_t>(shape);
    results.emplace_back(IndexedSlices{broadcast(rows.values, where), broadcast(rows.indices, where),
                                       std::vector<std::int64_t>(sizes, sizes + shape.numel())});
  }
  return results;
}

std::size_t Strategy::chiefs_size(std::size_t size, const std::source_location& where) {
  return static_cast<std::size_t>(
      broadcast(at::scalar_tensor(static_cast<std::int64_t>(size), at::kLong), where).item<std::int64_t>());
}

std::shared_ptr<gpu::Graph> Strategy::make_graph() { return nullptr; }

void Strategy::make_replicas(LocalReplicasOptions options, bool deterministic) {
  options.replicas = num_local_replicas_;
  options.first_id = worker_id_ * num_local_replicas_;
  options.all_replicas = num_replicas_in_sync_;
  for (const auto& context : contexts_) options.devices.push_back(context->device());
  replicas_ = std::make_unique<LocalReplicas>(options);
  if (deterministic && device_kinds_ != DeviceKinds::Cpus) gpu::use_deterministic_algorithms();
}

void Strategy::run_replicas(FunctionRef<void(int, local::Seat*)> body) {
  if (workers_) workers_->set_place(str("call ", ++runs_->calls, " of run"));
  if (const auto failure = replicas_->run(body)) raise_failure(*failure);
}

int Strategy::intra_op_threads() const { return replicas_ ? replicas_->threads() : at::get_num_threads(); }

std::uint64_t Strategy::seed() const { return replicas_ ? replicas_->seed() : shared_generator_seed(); }

void Strategy::set_seed(std::uint64_t seed, const std::source_location& where) {
  detail::require_cross_replica(*this, "set_seed");
  const detail::CallPlace place(where);
  if (workers_)
    workers::require_same(*workers_, {.what = "seed", .lines = {str("seed: ", seed)}}, "set_seed",
                          deadline_of(communication_));
  seed_shared_generators(seed);
  if (replicas_) replicas_->set_seed(seed);
}

Strategy& detail::StrategyAccess::require_alive(const std::weak_ptr<Strategy*>& held, std::string_view what) {
  if (const auto alive = held.lock()) return **alive;
  throw FailedPrecondition(errors::kMixedStrategies, {.what = str(what, " has outlived its strategy"),
                                                      .help = "keep the strategy as long as what was made by it"});
}

CommunicationOptions detail::StrategyAccess::options_of_call(const Strategy& strategy,
                                                             const CommunicationOptions& given) {
  const CommunicationOptions options = merge(strategy.communication(), validated(given));
  if (options.implementation == Implementation::Ring && strategy.workers_ &&
      strategy.communication().implementation != Implementation::Ring) {
    throw FailedPrecondition(
        errors::kNotAvailable,
        {.what = "Implementation::Ring needs a strategy that was made with it",
         .help =
             "make the strategy with .communication = {.implementation = ls::Implementation::Ring}: its workers are "
             "then connected in a ring too"});
  }
  return options;
}

bool detail::StrategyAccess::has_made_variables(const Strategy& strategy) {
  return strategy.extended_->has_made_variables();
}

std::atomic<const void*>* detail::collective_thread(const Strategy& strategy) {
  return StrategyAccess::workers(strategy) == nullptr ? nullptr : &strategy_local<CollectiveThread>(strategy).holder;
}

Variable Strategy::make_variable(const at::Tensor& initial_value, VariableOptions options) {
  const Scope in_scope = scope();
  return Variable(initial_value, std::move(options));
}

std::string Strategy::describe() const {
  std::string text = is_default() ? "the default strategy" : type_name(typeid(*this));
  text += str(": ", counted(num_local_replicas(), "replica"), " on ");
  for (const std::string& name : devices_) {
    const DeviceName device = parse_device(name);
    text += str(&name == &devices_.front() ? "" : ", ", device.type, ":", device.index.value_or(0),
                device.logical ? str("/", *device.logical) : "");
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Strategy& strategy) {
  std::string text = strategy.describe();
  while (text.ends_with('\n')) text.pop_back();
  return out << text;
}

}  // namespace lockstep
