#include "lockstep/strategy/strategy.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <ostream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/detail/one_thread.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/same_on_workers.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/worker_collectives.h"
#include "lockstep/values/const_data.h"
#include "lockstep/values/type_name.h"

namespace lockstep {
namespace {

void require_equal_structures(const Strategy& strategy, const std::vector<std::vector<ReducibleLeaf>>& components,
                              const std::vector<std::string>& structures, const char* operation) {
  if (components.empty()) {
    throw InvalidArgument(errors::kComponent, {.what = "a distributed value must have at least one component, got 0",
                                               .where = operation,
                                               .help = "pass what run or values_from_function returned"});
  }
  for (std::size_t k = 1; k < components.size(); ++k) {
    if (structures[k] == structures[0] && components[k].size() == components[0].size()) continue;
    throw InvalidArgument(errors::kStructure, {.what = "the replicas' values have different structures",
                                               .where = operation,
                                               .seen = str(detail::replica_name(strategy, 0), ": ", structures[0], ", ",
                                                           detail::replica_name(strategy, k), ": ", structures[k]),
                                               .help = "return the same structure on every replica"});
  }
}

/// A replica's seat while a run goes on. Runs nest: a merge function may start another.
class SeatScope {
 public:
  SeatScope(local::Seat*& place, local::Seat* seat) : place_(place), outer_(std::exchange(place, seat)) {}
  ~SeatScope() { place_ = outer_; }
  SeatScope(const SeatScope&) = delete;
  SeatScope& operator=(const SeatScope&) = delete;

 private:
  local::Seat*& place_;
  local::Seat* outer_;
};

/// An exception in words.
struct Said {
  std::string type;
  std::string what;  ///< one line of Lockstep's errors, all of others
  std::string text;

  bool operator==(const Said& other) const { return type == other.type && what == other.what; }
};

Said said_by(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {type_name(typeid(e)), e.text().what, e.what()};
  } catch (const c10::Error& e) {
    return {type_name(typeid(e)), e.what_without_backtrace(), e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {type_name(typeid(e)), e.what(), e.what()};
  } catch (...) {
    return {type_name(*abi::__cxa_current_exception_type()), "unknown exception", "unknown exception"};
  }
}

/// The caller sees these in no other way.
void log_other_failures(const Strategy& strategy, const Said& thrown,
                        const std::vector<local::ReplicaFailure>& others) {
  constexpr std::size_t kMostLines = 3;
  std::vector<Said> seen{thrown};
  for (const auto& other : others) {
    Said said = said_by(other.error);
    if (std::find(seen.begin(), seen.end(), said) != seen.end()) continue;
    if (seen.size() > kMostLines) return log_warning("more replicas failed in other ways");
    log_warning(str(detail::replica_name(strategy, static_cast<std::size_t>(other.replica)),
                    " failed too, in another way: ", said.type, ": ", said.what));
    seen.push_back(std::move(said));
  }
}

/// Whether this code is part of a run of `strategy`: a merge function may start another.
bool runs_on_replicas_of(const Strategy& strategy) {
  for (const auto* entry = detail::current_context(); entry != nullptr; entry = entry->below) {
    if (entry->replica != nullptr && entry->strategy == &strategy) return true;
  }
  return false;
}

std::atomic<int> strategies_of_several_workers{0};

using detail::this_thread;

[[noreturn]] void throw_not_reducible(const std::string& what, const std::string& help) {
  throw InvalidArgument(errors::kNotReducible, {.what = what, .where = "reduce", .help = help});
}

}  // namespace

Strategy::Strategy(Parts parts)
    : num_replicas_in_sync_(static_cast<int>(parts.devices.size()) * (parts.workers ? parts.workers->workers() : 1)),
      num_local_replicas_(static_cast<int>(parts.devices.size())),
      worker_id_(parts.workers ? parts.workers->rank() : 0),
      workers_(std::move(parts.workers)),
      cross_device_ops_(parts.cross_device_ops ? std::move(parts.cross_device_ops) : default_cross_device_ops()),
      communication_(validated(parts.communication)),
      strict_(parts.strict),
      extended_(std::make_unique<StrategyExtended>(*this)),
      alive_(std::make_shared<Strategy*>(this)) {
  for (std::size_t k = 0; k < parts.devices.size(); ++k) {
    devices_.push_back(to_string(parts.devices[k]));
    contexts_.push_back(std::make_unique<ReplicaContext>(*this, static_cast<int>(k),
                                                         worker_id_ * num_local_replicas_ + static_cast<int>(k),
                                                         torch_device(parts.devices[k]), devices_.back()));
  }
  if (workers_) ++strategies_of_several_workers;
}

Strategy::~Strategy() {
  if (workers_) --strategies_of_several_workers;
  detail::forget_strategy(*this);
}

bool workers::are_several() { return strategies_of_several_workers > 0; }

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
  const detail::OneThread one(workers_ ? &collective_thread_ : nullptr, "broadcast");
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

std::uint64_t Strategy::seed() const { return shared_generator_seed(); }

void Strategy::set_seed(std::uint64_t seed, const std::source_location& where) {
  detail::require_cross_replica(*this, "set_seed");
  const detail::CallPlace place(where);
  if (workers_)
    workers::require_same(*workers_, {.what = "seed", .lines = {str("seed: ", seed)}}, "set_seed",
                          deadline_of(communication_));
  start_random_numbers(seed);
}

void Strategy::start_random_numbers(std::uint64_t seed) { seed_shared_generator(seed); }

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

std::uint64_t detail::StrategyAccess::next_make_seed(Strategy& strategy) {
  if (shared_generator_seed() != strategy.seed() && SharedGenerator().was_seeded_before()) {
    log_warning(
        "torch::manual_seed was called after the strategy was made, and does not reach the initial weights of this model. "
        "Call strategy.set_seed(seed), or torch::manual_seed before the strategy is made");
  }
  return derived_seed(strategy.seed(), "make", strategy.models_made_++);
}

Variable Strategy::make_variable(const at::Tensor& initial_value, VariableOptions options) {
  const Scope in_scope = scope();
  return Variable(initial_value, std::move(options));
}

const std::vector<at::Tensor>& Strategy::components_of(const Variable& variable, const char* operation) const {
  if (variable.is_distributed()) extended_->require_own(variable, operation);
  return variable.values();
}

at::Tensor Strategy::reduce_variable(ReduceOp op, const Variable& variable, const Axis& axis) {
  const std::vector<at::Tensor>& components = components_of(variable, "reduce");
  const bool differs = variable.synchronization() == Synchronization::OnRead;
  return differs ? reduce(op, PerReplica<at::Tensor>(components), axis)
                 : reduce(op, Mirrored<at::Tensor>(components), axis);
}

at::Tensor Strategy::gather_variable(const Variable& variable, std::int64_t axis) {
  return gather(PerReplica<at::Tensor>(components_of(variable, "gather")), axis);
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

void detail::StepRowsFinder::end_argument(const BatchRows& known) {
  if (rows_.place.step < 0) rows_.place = known.place;
  const std::size_t components = starts_.size();
  const std::size_t tensors = components == 0 ? 0 : (components > 1 ? starts_[1] : seen_.size());
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto rows_on = [&](std::size_t k) {
      const std::size_t end = k + 1 < components ? starts_[k + 1] : seen_.size();
      return starts_[k] + i < end ? seen_[starts_[k] + i] : -1;
    };
    bool has_rows = true;
    std::int64_t sum = 0;
    for (std::size_t k = 0; has_rows && k < components; ++k) {
      has_rows = rows_on(k) >= 0;
      sum += rows_on(k);
    }
    if (!has_rows) continue;
    if (rows_.here.empty()) {
      for (std::size_t k = 0; k < components; ++k) rows_.here.push_back(rows_on(k));
      // What the dataset knew is of no use where the program has changed the batches.
      if (!known.has_empty && known.here == sum) rows_.all = known.all;
      continue;
    }
    std::size_t equal = 0;
    for (std::size_t k = 0; k < components; ++k) equal += rows_on(k) == rows_.here[k] ? 1U : 0U;
    is_ambiguous_ = is_ambiguous_ || (equal > 0 && equal < components);
  }
  seen_.clear();
  starts_.clear();
}

detail::StepRows detail::StepRowsFinder::finish() {
  // Other workers do not see the tensors here: what all of them know counts.
  if (is_ambiguous_ && rows_.all < 0) rows_.here.clear();
  return std::move(rows_);
}

void detail::throw_component_count(const char* operation, std::size_t argument, const char* kind,
                                   std::size_t components, std::size_t wanted) {
  const bool is_run = std::string_view(operation) == "run";
  throw InvalidArgument(
      errors::kComponent,
      {.what = str("argument ", argument, " of ", operation, " holds a ", kind, " of ",
                   counted(static_cast<long long>(components), "component"),
                   components < wanted ? ", too few for " : ", too many for ",
                   counted(static_cast<long long>(wanted), is_run ? "local replica" : "component")),
       .where = operation,
       .help =
           "pass a value with one component per local replica: from distribute, values_from_function or run of the same "
           "strategy"});
}

void detail::require_placed(const char* operation, std::size_t argument, const Placement& placement,
                            const std::vector<int>& replicas) {
  for (const int replica : replicas) {
    if (placement.component_of(replica) == placement.devices.size())
      throw_not_placed(placement, replica, str("argument ", argument, " of ", operation));
  }
}

std::vector<int> detail::first_replicas(std::size_t count) {
  std::vector<int> replicas(count);
  std::iota(replicas.begin(), replicas.end(), 0);
  return replicas;
}

PerReplica<at::Tensor> detail::ComponentsOfVariables::operator()(const Variable& variable) const {
  return PerReplica<at::Tensor>(variable.values());
}

const Variable& detail::one_variable(const Variable* first, std::size_t count, const char* operation) {
  if (count == 0) require_equal_structures(get_strategy(), {}, {}, operation);
  for (std::size_t k = 1; k < count; ++k) {
    if (first[k].is_same(*first)) continue;
    throw InvalidArgument(
        errors::kStructure,
        {.what = "replicas gave different variables",
         .where = operation,
         .seen = str(replica_name(0), ": '", first->name(), "', ", replica_name(k), ": '", first[k].name(), "'"),
         .help = "give the same variable on every replica, or the tensors: variable.read()"});
  }
  return *first;
}

void detail::require_watched_untouched() {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->notes == nullptr) return;
  for (const auto& watcher : top->notes->watchers)
    watcher->require_untouched(static_cast<std::size_t>(top->replica->local_index()));
}

void detail::remember_watched() {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->notes == nullptr) return;
  for (const auto& watcher : top->notes->watchers)
    watcher->remember(static_cast<std::size_t>(top->replica->local_index()));
}

void Strategy::run_on_replicas(const detail::StepRows& rows, FunctionRef<void(std::size_t)> call) {
  detail::require_cross_replica(*this, "run");
  const detail::ContextGuard cross(*this, nullptr, -1);
  const int scopes = detail::sync_on_read_scopes();
  const bool is_inner = runs_on_replicas_of(*this);
  detail::RunWatchers watchers;  // which keeps them alive until the run has ended
  if (!watchers_.empty()) {
    static std::mutex mutex;  // a second thread is refused, but only when the run begins
    const std::lock_guard lock(mutex);
    std::erase_if(watchers_, [&](const auto& each) {
      auto watcher = each.lock();
      if (watcher) watchers.push_back(std::move(watcher));
      return each.expired();
    });
  }
  bool has_begun = false;  // otherwise it was refused, and another run may be under way
  const auto body = [&](int k, local::Seat* seat) {
    if (k == 0) {  // on the caller's thread
      has_begun = true;
      if (!is_inner) {
        runner_.store(this_thread());
        ++runs_begun_;
      }
    }
    ReplicaContext& replica = replica_context(k);
    const SeatScope seated(replica.seat_, seat);
    // The default strategy has no components for distributed values to stand for.
    const detail::ContextGuard inside(*this, &replica, is_default() ? -1 : k);
    const detail::InheritedSyncOnReadScopes inherited(scopes);
    detail::RunNotes notes{.rows = rows, .watchers = watchers};
    detail::current_context()->notes = &notes;
    for (const auto& watcher : watchers)
      is_inner ? watcher->remember(static_cast<std::size_t>(k)) : watcher->begin(static_cast<std::size_t>(k));
    call(static_cast<std::size_t>(k));
    detail::require_watched_untouched();
  };
  try {
    run_replicas(body);
    if (!is_inner) runner_.store(nullptr);
    for (const auto& watcher : watchers) {
      if (!is_inner) watcher->end();
    }
  } catch (...) {
    if (has_begun) ++failed_runs_;
    if (has_begun && !is_inner) runner_.store(nullptr);
    throw;
  }
}

bool detail::StrategyAccess::runs_elsewhere(const Strategy& strategy) {
  const void* const runner = strategy.runner_.load();
  return runner != nullptr && runner != this_thread();
}

void Strategy::raise_failure(const local::ReplicaFailure& failure) {
  const Said said = said_by(failure.error);
  const int replica = replica_context(failure.replica).replica_id_in_sync_group();
  last_failure_ = RunFailure{replica, said.text, said.type};
  log_other_failures(*this, said, failure.others);
  if (workers_) workers_->report(str(said.type, " on replica ", replica, ": ", said.what));
  // What is thrown is the caller's to log or not. A merge function's run is not worth a line: its caller is this run's.
  if (is_logged(Severity::Debug) && !runs_on_replicas_of(*this))
    log(Severity::Debug, str("run failed on replica ", replica, ": ", said.type, ": ", said.what));

  const std::string who = str("on replica ", replica);
  try {
    std::rethrow_exception(failure.error);
  } catch (Error& e) {
    // What happened to another worker happened on no replica of this one.
    const auto has = [&](const char* part) { return e.text().where.find(part) != std::string::npos; };
    const bool is_of_workers =
        workers_ && e.number() < errors::kWrongContext && (e.number() >= errors::kPeerLost || has("reported by"));
    if (!is_of_workers && !has("replica")) e.add_where(who);
    last_failure_->what = e.what();
    throw;
  } catch (c10::Error& e) {
    e.add_context(who);
    last_failure_->what = e.what_without_backtrace();
    throw;
  }
}

std::vector<Strategy::Leaves> Strategy::reduce_across(ReduceOp op, const std::vector<Leaves>& components,
                                                      const std::vector<std::string>& structures,
                                                      const Devices& destinations,
                                                      const CommunicationOptions& options) {
  require_op(op, "reduce");
  require_equal_structures(*this, components, structures, "reduce");
  const std::size_t leaf_count = components[0].size();
  std::vector<Leaves> results(destinations.size(), Leaves(leaf_count));
  std::vector<CrossDeviceOps::Job> dense;
  std::vector<std::size_t> dense_index;
  for (std::size_t i = 0; i < leaf_count; ++i) {
    std::size_t sparse = 0;
    for (const auto& component : components) sparse += std::holds_alternative<IndexedSlices>(component[i]) ? 1 : 0;
    if (sparse == components.size()) {
      auto rows = PerReplica<IndexedSlices>::generate(
          components.size(), [&](std::size_t k) { return std::get<IndexedSlices>(components[k][i]); });
      const auto all = cross_device_ops_->reduce_slices(op, rows, destinations, options);
      for (std::size_t d = 0; d < destinations.size(); ++d) results[d][i] = all[d];
      continue;
    }
    // Dense and sparse together are dense.
    auto tensors = PerReplica<at::Tensor>::generate(components.size(), [&](std::size_t k) {
      const auto* tensor = std::get_if<at::Tensor>(&components[k][i]);
      return tensor ? *tensor : std::get<IndexedSlices>(components[k][i]).to_dense();
    });
    require_summable(tensors[0], "reduce");
    require_equal_form(tensors.values(), "reduce");
    dense.emplace_back(std::move(tensors), destinations);
    dense_index.push_back(i);
  }
  const auto reduced = dense.size() == 1
                           ? std::vector{cross_device_ops_->reduce(op, dense[0].first, destinations, options)}
                           : cross_device_ops_->batch_reduce(op, dense, options);
  for (std::size_t j = 0; j < dense.size(); ++j) {
    for (std::size_t d = 0; d < destinations.size(); ++d) results[d][dense_index[j]] = reduced.at(j)[d];
  }
  return results;
}

Strategy::Leaves Strategy::reduce_components(ReduceOp op, const std::vector<Leaves>& components,
                                             const std::vector<std::string>& structures, const Axis& axis) {
  require_op(op, "reduce");
  const detail::OneThread one(workers_ ? &collective_thread_ : nullptr, "reduce");
  const Devices here{devices_[0]};
  if (axis.dims().empty()) return std::move(reduce_across(op, components, structures, here, communication_)[0]);

  require_equal_structures(*this, components, structures, "reduce");
  std::optional<detail::CallDetail> along;  // sums along other axes may have the same shape
  if (workers_) {
    std::string dims;
    for (const std::int64_t dim : axis.dims()) dims += str(dims.empty() ? "axis " : ", ", dim);
    along.emplace(std::move(dims));
  }
  std::vector<Leaves> sums(components.size());
  std::vector<std::int64_t> elements(components[0].size(), 0);
  for (std::size_t k = 0; k < components.size(); ++k) {
    for (std::size_t i = 0; i < components[k].size(); ++i) {
      const auto* tensor = std::get_if<at::Tensor>(&components[k][i]);
      if (tensor == nullptr)
        throw_not_reducible("sparse rows cannot be reduced along an axis",
                            "reduce without an axis, or call to_dense() first");
      sums[k].emplace_back(sum_along(*tensor, axis, elements[i]));
    }
  }
  Leaves total = std::move(reduce_across(ReduceOp::Sum, sums, structures, here, communication_)[0]);
  if (op == ReduceOp::Mean) {
    if (workers_) {
      for (std::int64_t& count : elements)
        count = workers::sum(*workers_, count, "elements of a mean", deadline_of(communication_));
    }
    for (std::size_t i = 0; i < total.size(); ++i) total[i] = divide_sum(std::get<at::Tensor>(total[i]), elements[i]);
  }
  return total;
}

Strategy::Leaves Strategy::reduce_shared(ReduceOp op, const Leaves& value, bool mirrored) {
  require_op(op, "reduce");
  if (op == ReduceOp::Sum && mirrored) {
    throw_not_reducible("a Mirrored value cannot be reduced with ReduceOp::Sum: it is one value, not one per replica",
                        "use ReduceOp::Mean, or multiply by num_replicas_in_sync() if that is what you mean");
  }
  const detail::OneThread one(workers_ ? &collective_thread_ : nullptr, "reduce");
  if (workers_ && !mirrored) return reduce_over_workers(op, value);
  if (op == ReduceOp::Sum && num_replicas_in_sync_ != 1) {
    throw_not_reducible(
        str("a plain value cannot be reduced with ReduceOp::Sum over ", num_replicas_in_sync_, " replicas"),
        "reduce what run returned (a PerReplica), or use ReduceOp::Mean for a value that is the same on all replicas");
  }
  Leaves result = value;
  // A copy: what a reduction returns is the caller's own, whatever it was made from.
  for (auto& leaf : result) {
    if (auto* tensor = std::get_if<at::Tensor>(&leaf)) *tensor = tensor->clone();
  }
  return result;
}

Strategy::Leaves Strategy::reduce_over_workers(ReduceOp op, const Leaves& value) {
  Leaves results;
  for (const auto& leaf : value) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf);
    if (tensor == nullptr)
      throw_not_reducible("sparse rows that are not distributed cannot be reduced over workers",
                          "reduce what run returned (a PerReplica), or call to_dense() first");
    require_summable(*tensor, "reduce");
    // One value per worker: its first replica's, and nothing of the others.
    std::vector<at::Tensor> components(static_cast<std::size_t>(num_local_replicas_),
                                       tensor->new_zeros(tensor->sizes()));
    components[0] = tensor->detach();
    const at::Tensor sum =
        workers::all_reduce(*workers_, ReduceOp::Sum, components, "reduce of plain values", communication_);
    results.emplace_back(op == ReduceOp::Mean ? divide_sum(sum, num_workers()) : sum);
  }
  return results;
}

Strategy::Leaves Strategy::gather_across(const std::vector<Leaves>& components,
                                         const std::vector<std::string>& structures, std::int64_t axis) {
  require_equal_structures(*this, components, structures, "gather");
  const detail::OneThread one(workers_ ? &collective_thread_ : nullptr, "gather");
  Leaves results;
  for (std::size_t i = 0; i < components[0].size(); ++i) {
    for (const auto& component : components) {
      if (!std::holds_alternative<IndexedSlices>(component[i])) continue;
      throw Unimplemented(errors::kNotAvailable,
                          {.what = "gather does not support IndexedSlices",
                           .where = "gather",
                           .help = "gather values and indices separately, or call to_dense() first"});
    }
    if (components.size() == 1 && !workers_) {
      results.push_back(components[0][i]);
      continue;
    }
    auto tensors = PerReplica<at::Tensor>::generate(
        components.size(), [&](std::size_t k) { return std::get<at::Tensor>(components[k][i]); });
    results.emplace_back(cross_device_ops_->gather(tensors, axis, {devices_[0]}, communication_)[0]);
  }
  return results;
}

}  // namespace lockstep
