#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable.h"

namespace lockstep {

/// The state behind Variable handles. What a call means is decided in variable.cpp (reads), variable_write.cpp and
/// variable_creation.cpp.
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

/// How a value changes what it is written to.
enum class Change { Set, Add, Sub, Mul, Div, Min, Max };

/// A write is a function of a component and a value. Where it is allowed and which components get what is decided in one place
/// for all writes: variable_write.cpp.
struct Write {
  Change change;
  const char* name;                                      ///< "assign_add"
  std::shared_ptr<const VariablePlace> place = nullptr;  ///< null: the whole component, or rows of it
};

/// Writes in the context that this thread is in, to one component or all of them, as the variable's rules say. Returns what
/// `read_back` asks for.
at::Tensor write(const Variable& variable, const Write& write, const VariableValue& value, ReadBack read_back);
at::Tensor write(const Variable& variable, const Write& write, const IndexedSlices& rows, ReadBack read_back);

/// Changes `target` by a value of its shape.
void change(Change how, at::Tensor& target, const at::Tensor& value);

// What differs between tensors (variable_values.cpp, variable_aggregate.cpp) and rows (variable_rows.cpp).

/// What a value has for component k: of a PerReplica its component k, of a Mirrored the one on the same device. It is checked and
/// shares no memory with the variable.
at::Tensor given_to(const Variable::Impl& variable, const Write& write, const VariableValue& value, std::size_t k);
IndexedSlices given_to(const Variable::Impl& variable, const Write& write, const IndexedSlices& rows, std::size_t k);
std::vector<at::Tensor> given_to_all(const Variable::Impl& variable, const Write& write, const VariableValue& value);
std::vector<IndexedSlices> given_to_all(const Variable::Impl& variable, const Write& write, const IndexedSlices& rows);

void apply(const Write& write, at::Tensor& component, const at::Tensor& given);
void apply(const Write& write, at::Tensor& component, const IndexedSlices& given);

/// What the components get when replicas write `values` to a mirrored variable, at the merge point.
VariableValue aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                         const PerReplica<VariableValue>& values);
IndexedSlices aggregated(Strategy& strategy, const Variable::Impl& variable, const Write& write,
                         const PerReplica<IndexedSlices>& values);

/// Throws unless rows can be written to the variable in this way, in whichever context.
void require_rows_writable(const Variable::Impl& variable, const Write& write);

/// The part of a tensor that `place` says: a view where that is possible. Throws InvalidArgument for what is not there.
at::Tensor part_of(const at::Tensor& whole, const VariablePlace* place);
/// Calls `change` with that part and writes the result back to `whole`.
void change_part(at::Tensor& whole, const VariablePlace& place, FunctionRef<void(at::Tensor&)> change);
bool is_same_place(const VariablePlace* a, const VariablePlace* b);
std::string text_of(const VariablePlace& place);  ///< its indices

/// The shape, dtype and device that a value must have for component k.
at::Tensor target_of(const Variable::Impl& variable, const Write& write, std::size_t k = 0);
/// What a value has for component k, unchecked and as the program gave it.
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
/// What OnlyFirstReplica takes: the value of this worker's first replica, or that of the first of all workers.
template <class T>
T value_of_first(Strategy& strategy, const T& mine) {
  return is_client_of_several_workers(strategy) ? strategy.broadcast(mine) : mine;
}

/// The context of this thread for a variable of `strategy`; the default context counts as cross-replica there.
VariableContext variable_context(const Strategy& strategy, const char* operation);

/// The index of the calling replica or updated component; only in Replica and Update contexts.
std::size_t calling_component(const Variable::Impl& variable);

/// Calls `write(k, component)` for all components, without recording gradients.
void write_components(const Variable::Impl& variable, FunctionRef<void(std::size_t, at::Tensor&)> write);

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

}  // namespace detail

}  // namespace lockstep
