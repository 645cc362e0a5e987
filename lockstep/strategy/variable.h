#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {

class Strategy;
class StrategyExtended;
class Variable;
struct VariableIdentity;

/// When the components of a variable are brought together.
enum class Synchronization {
  Auto = 0,     ///< OnWrite
  None = 1,     ///< not supported; refused at creation
  OnWrite = 2,  ///< every write reaches all components: they stay equal
  OnRead = 3,   ///< replicas write their own component; reading outside replicas brings them together
};

/// How the replicas' values become one.
enum class Aggregation { None = 0, Sum = 1, Mean = 2, OnlyFirstReplica = 3 };

LOCKSTEP_EXPORT std::string_view to_string(Synchronization synchronization);  ///< "AUTO", "NONE", "ON_WRITE", "ON_READ"
LOCKSTEP_EXPORT std::string_view to_string(Aggregation aggregation);  ///< "NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"
LOCKSTEP_EXPORT Synchronization parse_synchronization(std::string_view name);
LOCKSTEP_EXPORT Aggregation parse_aggregation(std::string_view name);

struct VariableOptions {
  std::string name = {};  ///< empty: "Variable"
  Synchronization synchronization = Synchronization::Auto;
  Aggregation aggregation = Aggregation::None;
  std::optional<bool> trainable = {};        ///< unset: true, but false for OnRead
  std::optional<at::ScalarType> dtype = {};  ///< unset: the initial value's
};

/// What a variable can be given: a tensor, a number, or one tensor per component.
class LOCKSTEP_EXPORT VariableValue {
 public:
  enum class Kind { Tensor, Number, PerReplica, Mirrored };

  // NOLINTBEGIN(google-explicit-constructor)
  VariableValue(at::Tensor tensor) : kind_(Kind::Tensor), tensor_(std::move(tensor)) {}
  VariableValue(c10::Scalar number) : kind_(Kind::Number), number_(number) {}
  VariableValue(double number) : kind_(Kind::Number), number_(number) {}
  template <std::integral T>
  VariableValue(T number) : kind_(Kind::Number), number_(static_cast<std::int64_t>(number)) {}
  VariableValue(const Variable& variable);
  VariableValue(PerReplica<at::Tensor> value) : kind_(Kind::PerReplica), components_(std::move(value).values()) {}
  VariableValue(Mirrored<at::Tensor> value) : kind_(Kind::Mirrored), components_(std::move(value).values()) {}
  // NOLINTEND(google-explicit-constructor)

  Kind kind() const { return kind_; }
  const at::Tensor& tensor() const { return tensor_; }                       ///< of Kind::Tensor
  const c10::Scalar& number() const { return number_; }                      ///< of Kind::Number
  const std::vector<at::Tensor>& components() const { return components_; }  ///< of the others

 private:
  Kind kind_;
  at::Tensor tensor_;
  c10::Scalar number_;
  std::vector<at::Tensor> components_;
};

/// Whether a write also returns what reading gives afterwards.
enum class ReadBack { Yes, No };

/// A tensor with one component per replica, created inside a strategy's scope. What reading and writing mean depends on
/// the context (see context.h), its synchronization and its aggregation:
///
/// |                 | in a replica          | outside of replicas                      | in an update function |
/// |-----------------|-----------------------|------------------------------------------|-----------------------|
/// | OnWrite, read   | own component         | component 0                              | component k           |
/// | OnWrite, assign | by aggregation, below | all components                           | component k           |
/// | OnRead, read    | own component         | the sum, mean or first of the components | component k           |
/// | OnRead, assign  | own component         | all components (Sum: value / N)          | component k           |
///
/// Assigning an OnWrite variable in a replica: None writes the replica's own component; Sum and Mean give all
/// components the sum or mean of the replicas' values; OnlyFirstReplica gives all components replica 0's value.
///
///     auto scope = strategy.scope();
///     ls::Variable steps(torch::zeros({}), {.name = "steps", .aggregation = ls::Aggregation::OnlyFirstReplica});
///     strategy.run([&] { steps.assign_add(1); });   // 1, not N
///
/// Outside of every scope the constructor makes a plain variable of one component. A Variable is a handle: copies name
/// the same variable. Reading returns the component itself, as a LibTorch parameter does, not a copy; `clone()` it to
/// keep a value. Safe to read and write from the replicas of one run; not from threads of the user's own at the same
/// time.
class LOCKSTEP_EXPORT Variable {
 public:
  class Impl;
  using Initializer = std::function<at::Tensor()>;

  explicit Variable(at::Tensor initial_value, VariableOptions options = {});
  explicit Variable(const Initializer& initializer, VariableOptions options = {});
  /// The handle for an existing variable; for library code.
  explicit Variable(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  at::Tensor read() const;
  operator at::Tensor() const;  // NOLINT(google-explicit-constructor): a variable is used as a tensor

  /// Writes; with ReadBack::Yes returns what `read` gives afterwards, else an undefined tensor.
  at::Tensor assign(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_add(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_sub(const VariableValue& value, ReadBack read_back = ReadBack::Yes);

  /// Row-wise writes. In a replica, rows of all replicas are applied one after the other as the aggregation says; a row
  /// that two replicas address is written twice. min, max and update need Aggregation::None or OnlyFirstReplica.
  at::Tensor scatter_add(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_sub(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_mul(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_div(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_min(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_max(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_update(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);

  /// The components in replica order; writing to one of them directly bypasses every rule above.
  const std::vector<at::Tensor>& values() const;
  /// The calling replica's component; InvalidArgument where there is no calling replica.
  at::Tensor handle() const;

  const std::string& name() const;                  ///< "w"
  std::string component_name(std::size_t k) const;  ///< "w", "w/replica_1", ...
  at::ScalarType dtype() const;
  at::IntArrayRef shape() const;
  bool trainable() const;
  Synchronization synchronization() const;  ///< never Auto
  Aggregation aggregation() const;
  at::Device device() const;
  bool is_initialized() const;
  at::Tensor initial_value() const;
  bool is_distributed() const;  ///< false for a plain variable, made outside of every scope
  Strategy& strategy() const;

  /// What a checkpoint holds: one tensor. Loading gives every component its part of it, for any number of replicas.
  at::Tensor state() const;
  void load_state(const at::Tensor& state);

  bool is_same(const Variable& other) const { return impl_ == other.impl_; }
  const std::shared_ptr<Impl>& impl() const { return impl_; }
  std::shared_ptr<const VariableIdentity> identity() const;
  std::shared_ptr<const VariableIdentity> component_identity(std::size_t k) const;

 private:
  std::shared_ptr<Impl> impl_;
};

/// "Variable OnWrite:{\n  0: <'v' shape=() dtype=float32 value=1.0>, ...\n}"
LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const Variable& variable);

/// While it lives, using an OnRead variable as a tensor inside a replica brings the components together (all replicas
/// must do it). Open it inside the replica function, or around `run` for all of them.
class [[nodiscard]] LOCKSTEP_EXPORT SyncOnReadScope {
 public:
  SyncOnReadScope();
  ~SyncOnReadScope();
  SyncOnReadScope(const SyncOnReadScope&) = delete;
  SyncOnReadScope& operator=(const SyncOnReadScope&) = delete;
};

/// The name under which replicas find each other's variables: "Variable" for none, without the numbers that make names
/// unique: "dense_1/kernel_2" is "dense/kernel". As in TensorFlow only one digit is dropped: "kernel_12" stays.
LOCKSTEP_EXPORT std::string canonical_variable_name(std::string_view name);

inline VariableValue::VariableValue(const Variable& variable) : kind_(Kind::Tensor), tensor_(variable) {}

// A variable is used as a tensor; these make expressions find the conversion.
inline at::Tensor operator-(const Variable& a) { return at::Tensor(a).neg(); }
inline at::Tensor operator+(const Variable& a, const Variable& b) { return at::Tensor(a).add(at::Tensor(b)); }
inline at::Tensor operator-(const Variable& a, const Variable& b) { return at::Tensor(a).sub(at::Tensor(b)); }
inline at::Tensor operator*(const Variable& a, const Variable& b) { return at::Tensor(a).mul(at::Tensor(b)); }
inline at::Tensor operator/(const Variable& a, const Variable& b) { return at::Tensor(a).div(at::Tensor(b)); }
inline at::Tensor operator+(const Variable& a, const at::Tensor& b) { return at::Tensor(a).add(b); }
inline at::Tensor operator-(const Variable& a, const at::Tensor& b) { return at::Tensor(a).sub(b); }
inline at::Tensor operator*(const Variable& a, const at::Tensor& b) { return at::Tensor(a).mul(b); }
inline at::Tensor operator/(const Variable& a, const at::Tensor& b) { return at::Tensor(a).div(b); }
inline at::Tensor operator+(const at::Tensor& a, const Variable& b) { return a.add(at::Tensor(b)); }
inline at::Tensor operator-(const at::Tensor& a, const Variable& b) { return a.sub(at::Tensor(b)); }
inline at::Tensor operator*(const at::Tensor& a, const Variable& b) { return a.mul(at::Tensor(b)); }
inline at::Tensor operator/(const at::Tensor& a, const Variable& b) { return a.div(at::Tensor(b)); }
inline at::Tensor operator+(const Variable& a, const c10::Scalar& b) { return at::Tensor(a).add(b); }
inline at::Tensor operator-(const Variable& a, const c10::Scalar& b) { return at::Tensor(a).sub(b); }
inline at::Tensor operator*(const Variable& a, const c10::Scalar& b) { return at::Tensor(a).mul(b); }
inline at::Tensor operator/(const Variable& a, const c10::Scalar& b) { return at::Tensor(a).div(b); }
inline at::Tensor operator+(const c10::Scalar& a, const Variable& b) { return at::Tensor(b).add(a); }
inline at::Tensor operator-(const c10::Scalar& a, const Variable& b) { return at::Tensor(b).neg().add(a); }
inline at::Tensor operator*(const c10::Scalar& a, const Variable& b) { return at::Tensor(b).mul(a); }

}  // namespace lockstep
