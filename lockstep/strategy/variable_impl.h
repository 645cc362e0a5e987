#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/variable.h"

namespace lockstep {

/// The state behind Variable handles. What a call means is decided in variable.cpp (reads), variable_assign.cpp,
/// variable_scatter.cpp (rows) and variable_creation.cpp.
class Variable::Impl {
 public:
  /// A variable with one component per device. `strategy` null: a plain variable without a strategy.
  static std::shared_ptr<Impl> create(Strategy* strategy, const at::Tensor& initial_value,
                                      const VariableOptions& options, Devices devices);
  /// A variable like `original`, with its own components of the same values.
  static std::shared_ptr<Impl> copy(const Impl& original, const std::string& name);

  Strategy& strategy() const;
  /// Null if it is gone, or there was none.
  const Strategy* strategy_if_alive() const;
  bool is_distributed() const { return distributed_; }
  bool is_copy() const { return is_copy_; }
  bool is_sync_on_read() const { return options_.synchronization == Synchronization::OnRead; }

  const VariableOptions& options() const { return options_; }  ///< synchronization and trainable are resolved
  const std::vector<at::Tensor>& values() const { return values_; }
  const at::Tensor& initial_value() const { return initial_value_; }
  /// Among the variables that its strategy has made, on every worker the same; 0 for a copy, which one worker alone may make.
  int number() const { return number_; }

 private:
  Impl() = default;

  VariableOptions options_;
  bool distributed_ = false;
  std::weak_ptr<Strategy*> strategy_;
  std::vector<at::Tensor> values_;
  at::Tensor initial_value_;
  int number_ = 0;
  bool is_copy_ = false;
};

namespace detail {

/// Where a variable is used, as far as its rules tell contexts apart.
enum class VariableContext { Replica, CrossReplica, Update };

enum class Assign { Set, Add, Sub };

/// How values are written, and where: null: to the whole.
struct Write {
  Assign kind;
  std::shared_ptr<const VariablePlace> place = nullptr;

  const char* name() const;  ///< "assign_add"
};

/// While it lives, collectives of this thread are those of a write to a variable: workers compare which.
class WritePlace {
 public:
  WritePlace(const Variable::Impl& variable, const char* operation, const VariablePlace* part = nullptr);

 private:
  std::string text_;
  std::optional<CallPlace> place_;  ///< of several workers
};

/// Writes in the context that this thread is in, to one component or all of them, as the variable's rules say. Returns
/// which context that was.
VariableContext write_here(const std::shared_ptr<Variable::Impl>& variable, const Write& write,
                           const VariableValue& value);
/// What a write returns.
at::Tensor read_back_of(const Variable& variable, VariableContext context);

/// The part of a tensor that `place` says: a view where that is possible. Throws InvalidArgument for what is not there.
at::Tensor part_of(const at::Tensor& whole, const VariablePlace* place);
/// Changes that part to, or by, `value`, which has its shape.
void write_part(Assign kind, at::Tensor& whole, const VariablePlace* place, const at::Tensor& value);
bool is_same_place(const VariablePlace* a, const VariablePlace* b);
std::string text_of(const VariablePlace& place);  ///< its indices

/// The shape, dtype and device that a value must have for component k.
at::Tensor target_of(const Variable::Impl& variable, const Write& write, std::size_t k = 0);
/// The tensor that component k gets: of a PerReplica its component k, of a Mirrored the one on the same device.
at::Tensor value_for(const Variable::Impl& variable, const Write& write, const VariableValue& value, std::size_t k);
void require_defined(const Variable::Impl& variable, const at::Tensor& value);
void require_fitting(const Variable::Impl& variable, const at::Tensor& component, const at::Tensor& value);
/// A value for the component on `device`. Between CPU and GPU it is brought only if the variable is on both: else the program
/// has forgotten to.
at::Tensor brought_to(const Variable::Impl& variable, const at::Tensor& value, at::Device device);
[[noreturn]] void throw_assign(const Variable::Impl& variable, std::string what, std::string help);

bool is_distributed_value(const VariableValue& value);
/// How the components of a variable with this aggregation become one value.
ReduceOp reduce_op_of(Aggregation aggregation);
/// Whether all replicas, those of other workers too, gave the same bits. `tensors`: for each part of a value, that of each local
/// replica. With several workers a collective.
bool is_one_value_everywhere(Strategy& strategy, const std::vector<std::vector<at::Tensor>>& tensors);
/// What every component gets when replicas assign `values` to a mirrored variable, at the merge point.
Mirrored<at::Tensor> aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                                const PerReplica<VariableValue>& values);

/// The context of this thread for a variable of `strategy`; the default context counts as cross-replica there.
VariableContext variable_context(const Strategy& strategy, const char* operation);

/// The index of the calling replica or updated component; only in Replica and Update contexts.
std::size_t calling_component(const Variable::Impl& variable);

/// Calls `write(component)` for one component or for all of them, without recording gradients.
void write_components(const Variable::Impl& variable, const std::function<void(std::size_t, at::Tensor&)>& write);
void write_component(const Variable::Impl& variable, std::size_t k,
                     const std::function<void(std::size_t, at::Tensor&)>& write);

/// How many SyncOnReadScopes are open on this thread; `run` carries them to the replicas' threads.
int sync_on_read_scopes();
class InheritedSyncOnReadScopes {
 public:
  explicit InheritedSyncOnReadScopes(int scopes);
  ~InheritedSyncOnReadScopes();
  InheritedSyncOnReadScopes(const InheritedSyncOnReadScopes&) = delete;
  InheritedSyncOnReadScopes& operator=(const InheritedSyncOnReadScopes&) = delete;

 private:
  int outer_;
};

/// Whether a tensor lies in the memory of one of the components: it would change while they are written one by one.
bool lies_in(const at::Tensor& tensor, const Variable::Impl& variable);

/// At a merge point: throws unless all replicas came to write to the same variable in the same way.
void require_same_write(const PerReplica<std::shared_ptr<Variable::Impl>>& variables,
                        const PerReplica<const char*>& operations);

/// In a replica: throws if the strategy is strict and a write could make components of the mirrored variable differ: it has no
/// aggregation, or each of several workers would take its own first replica's value.
void require_aggregation_if_strict(const Variable::Impl& variable);

}  // namespace detail

}  // namespace lockstep
