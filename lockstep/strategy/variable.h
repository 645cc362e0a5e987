#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/values/indexed_slices.h"
#include "lockstep/values/per_replica.h"

namespace at::indexing {
struct TensorIndex;  // <ATen/TensorIndexing.h>, part of <torch/torch.h>
}

namespace lockstep {

class Strategy;
class StrategyExtended;
class Variable;
class VariableSlice;
struct VariablePlace;  // variable_slice.cpp

/// When a variable's components are combined.
enum class Synchronization {
  Auto = 0,     ///< OnWrite
  None = 1,     ///< not supported; refused at creation
  OnWrite = 2,  ///< every write reaches all components, so they stay equal
  OnRead = 3,   ///< replicas write their own component; reading outside of replicas combines them
};

/// How the replicas' values are combined into one.
enum class Aggregation { None = 0, Sum = 1, Mean = 2, OnlyFirstReplica = 3 };

LOCKSTEP_EXPORT std::string_view to_string(Synchronization synchronization);  ///< "AUTO", "NONE", "ON_WRITE", "ON_READ"
LOCKSTEP_EXPORT std::string_view to_string(Aggregation aggregation);  ///< "NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"
/// The value with this name; throws InvalidArgument for any other name.
LOCKSTEP_EXPORT Synchronization parse_synchronization(std::string_view name);
LOCKSTEP_EXPORT Aggregation parse_aggregation(std::string_view name);

/// Options of a Variable.
struct VariableOptions {
  std::string name = {};                                    ///< empty: "Variable"
  Synchronization synchronization = Synchronization::Auto;  ///< when components are combined
  Aggregation aggregation = Aggregation::None;              ///< how the replicas' values are combined
  std::optional<bool> trainable = {};                       ///< unset: true, but false for OnRead
  std::optional<at::ScalarType> dtype = {};                 ///< unset: the initial value's
};

/// A value that can be written to a variable: a tensor, a number, or one tensor per component.
class LOCKSTEP_EXPORT VariableValue {
 public:
  /// The kinds of values.
  enum class Kind { Tensor, Number, PerReplica, Mirrored };

  // NOLINTBEGIN(google-explicit-constructor)
  VariableValue(at::Tensor tensor) : kind_(Kind::Tensor), tensor_(std::move(tensor)) {}
  VariableValue(c10::Scalar number) : kind_(Kind::Number), number_(number) {}
  VariableValue(double number) : kind_(Kind::Number), number_(number) {}
  template <std::integral T>
  VariableValue(T number) : kind_(Kind::Number), number_(static_cast<std::int64_t>(number)) {}
  VariableValue(const Variable& variable);
  VariableValue(const VariableSlice& slice);
  VariableValue(PerReplica<at::Tensor> value);
  VariableValue(Mirrored<at::Tensor> value);
  // NOLINTEND(google-explicit-constructor)

  Kind kind() const { return kind_; }                                        ///< which of these it holds
  const at::Tensor& tensor() const { return tensor_; }                       ///< for Kind::Tensor
  const c10::Scalar& number() const { return number_; }                      ///< for Kind::Number
  const std::vector<at::Tensor>& components() const { return components_; }  ///< for the other kinds
  const Placement* placement() const { return placement_.get(); }            ///< for Kind::Mirrored; may be null

 private:
  Kind kind_;
  at::Tensor tensor_;
  c10::Scalar number_;
  std::vector<at::Tensor> components_;
  std::shared_ptr<const Placement> placement_;
};

/// Whether a write also returns the value afterwards.
enum class ReadBack { Yes, No };

/// A tensor with one component per replica, created inside a strategy's scope. The effect of reading and writing
/// depends on the context (see context.h), the synchronization and the aggregation:
///
/// |                 | in a replica          | outside of replicas                      | in an update function |
/// |-----------------|-----------------------|------------------------------------------|-----------------------|
/// | OnWrite, read   | own component         | component 0                              | component k           |
/// | OnWrite, assign | by aggregation, below | all components                           | component k           |
/// | OnRead, read    | own component         | the sum, mean or first of the components | component k           |
/// | OnRead, assign  | own component         | all components (Sum: value / N)          | component k           |
///
/// Assigning an OnWrite variable in a replica: None writes the replica's own component; Sum and Mean write the sum or
/// mean of the replicas' values to all components; OnlyFirstReplica writes replica 0's value to all of them. On several
/// workers, OnlyFirstReplica uses each worker's own first replica, so components may differ between workers: make sure
/// that these values are equal, as in the example, or use Mean. A strategy with `.strict` refuses such a write.
///
///     auto scope = strategy.scope();
///     ls::Variable steps(torch::zeros({}), {.name = "steps", .aggregation = ls::Aggregation::OnlyFirstReplica});
///     strategy.run([&] { steps.assign_add(1); });   // 1, not N
///
/// Outside of every scope the constructor makes a plain variable with one component. A Variable is a handle: copies
/// refer to the same variable. Reading returns the component itself, not a copy, as with a LibTorch parameter; call
/// `read().clone()` to keep a value. Replicas of one run may read and write it concurrently; threads that you start
/// yourself may not.
class LOCKSTEP_EXPORT Variable {
 public:
  class Impl;
  using Initializer = std::function<at::Tensor()>;  ///< makes the initial value

  explicit Variable(at::Tensor initial_value, VariableOptions options = {});
  explicit Variable(const Initializer& initializer, VariableOptions options = {});
  /// Wraps an existing variable; for library code.
  explicit Variable(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  /// The calling replica's component. Outside of replicas the single value, combined from the components if it is
  /// OnRead.
  at::Tensor read() const;
  operator at::Tensor() const;  // NOLINT(google-explicit-constructor): a variable is used as a tensor

  /// Writes. Returns the value that `read` gives afterwards, or an undefined tensor with ReadBack::No.
  at::Tensor assign(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_add(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_sub(const VariableValue& value, ReadBack read_back = ReadBack::Yes);

  /// Row-wise writes. In a replica, the rows of all replicas are applied one replica after the other, as the
  /// aggregation says; a row that two replicas address is written twice. min, max and update need Aggregation::None or
  /// OnlyFirstReplica.
  at::Tensor scatter_add(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_sub(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_mul(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_div(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_min(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_max(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);
  at::Tensor scatter_update(const IndexedSlices& rows, ReadBack read_back = ReadBack::Yes);

  /// A part of the variable, indexed like a tensor. It reads as a tensor and is written by the rules of `assign`.
  ///
  ///     v[0] = torch::zeros({3});                       // row 0, of all components or as the aggregation says
  ///     v[Slice(1, 3)].assign_add(delta);
  ///     v.index({"...", 0}) = 1;
  ///     torch::Tensor row = v[0];
  VariableSlice operator[](std::int64_t index) const;
  VariableSlice operator[](const at::indexing::TensorIndex& index) const;
  VariableSlice index(std::initializer_list<at::indexing::TensorIndex> indices) const;
  at::Tensor index_put_(std::initializer_list<at::indexing::TensorIndex> indices, const VariableValue& value,
                        ReadBack read_back = ReadBack::Yes);

  /// Makes a new variable of the same kind with the components' current values. In replica context all replicas make
  /// one together.
  Variable clone(std::string name = {}) const;  ///< empty: the same name

  /// The components in replica order; writing to one of them directly bypasses every rule above.
  const std::vector<at::Tensor>& values() const;
  /// The calling replica's component; throws InvalidArgument outside of replicas.
  at::Tensor handle() const;

  const std::string& name() const;                  ///< "w"
  std::string component_name(std::size_t k) const;  ///< "w", "w/replica_1", ...
  /// Dtype and shape of a component, and whether the variable is trainable.
  at::ScalarType dtype() const;
  at::IntArrayRef shape() const;
  bool trainable() const;
  Synchronization synchronization() const;  ///< never Auto
  /// How the replicas' values are combined.
  Aggregation aggregation() const;
  /// The device of the calling replica's component.
  at::Device device() const;
  /// Whether it has a value.
  bool is_initialized() const;
  /// The value that it was created with.
  at::Tensor initial_value() const;
  bool is_distributed() const;  ///< false for a plain variable, made outside of every scope
  /// The strategy that made it.
  Strategy& strategy() const;

  /// The variable as one tensor, as saved in a checkpoint. Loading works for any number of replicas: each component
  /// gets its part.
  at::Tensor state() const;
  void load_state(const at::Tensor& state);

  /// Whether both name the same variable.
  bool is_same(const Variable& other) const { return impl_ == other.impl_; }
  /// For library code.
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

/// A part of a variable; made by `variable[...]` and `variable.index({...})`. A part can be indexed again, `v[0][1]`,
/// unless it was selected by a tensor. A number fills the part; a tensor must have its shape.
class LOCKSTEP_EXPORT VariableSlice {
 public:
  VariableSlice(Variable variable, std::shared_ptr<const VariablePlace> place)
      : variable_(std::move(variable)), place_(std::move(place)) {}
  VariableSlice(const VariableSlice&) = default;

  /// Reads the part, as `Variable::read` reads the whole.
  at::Tensor read() const;
  operator at::Tensor() const;  // NOLINT(google-explicit-constructor): as of a variable

  /// Writes the part, as `Variable::assign` writes the whole.
  at::Tensor assign(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_add(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  at::Tensor assign_sub(const VariableValue& value, ReadBack read_back = ReadBack::Yes);
  // NOLINTBEGIN(bugprone-unhandled-self-assignment,cppcoreguidelines-c-copy-assignment-signature)
  VariableSlice& operator=(const VariableSlice& value) { return *this = VariableValue(value); }
  VariableSlice& operator=(const VariableValue& value);
  VariableSlice& operator+=(const VariableValue& value);
  VariableSlice& operator-=(const VariableValue& value);
  // NOLINTEND(bugprone-unhandled-self-assignment,cppcoreguidelines-c-copy-assignment-signature)

  VariableSlice operator[](std::int64_t index) const;
  VariableSlice operator[](const at::indexing::TensorIndex& index) const;
  /// Selects a part of this part.
  VariableSlice index(std::initializer_list<at::indexing::TensorIndex> indices) const;

 private:
  Variable variable_;
  std::shared_ptr<const VariablePlace> place_;
};

/// "Variable OnWrite:{\n  0: <'v' shape=() dtype=float32 value=1.0>, ...\n}"
LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const Variable& variable);

/// While it lives, using an OnRead variable as a tensor inside a replica combines its components (all replicas must do
/// so). Open it inside the replica function, or around `run` for all of them.
class [[nodiscard]] LOCKSTEP_EXPORT SyncOnReadScope {
 public:
  SyncOnReadScope();
  ~SyncOnReadScope();
  SyncOnReadScope(const SyncOnReadScope&) = delete;
  SyncOnReadScope& operator=(const SyncOnReadScope&) = delete;
};

/// The name by which replicas match their variables: "Variable" if empty, otherwise without the numbers that make names
/// unique: "dense_1/kernel_2" becomes "dense/kernel". As in TensorFlow only one digit is dropped: "kernel_12" stays.
LOCKSTEP_EXPORT std::string canonical_variable_name(std::string_view name);

namespace detail {

enum class BinaryOp { Add, Sub, Mul, Div, Mod, And, Or, Xor, Eq, Ne, Lt, Le, Gt, Ge };

LOCKSTEP_EXPORT at::Tensor combine(BinaryOp op, const at::Tensor& a, const at::Tensor& b);
/// A number as an operand that does not decide the result's dtype, as in LibTorch's own operators.
LOCKSTEP_EXPORT at::Tensor number_operand(const c10::Scalar& number);

template <class T>
concept TensorOperand = std::is_convertible_v<const T&, at::Tensor>;
template <class T>
concept Operand = TensorOperand<T> || std::is_convertible_v<const T&, c10::Scalar>;
template <class T>
concept UsedAsTensor = std::derived_from<T, Variable> || std::same_as<T, VariableSlice>;
template <class A, class B>
concept VariableOperands = Operand<A> && Operand<B> &&(UsedAsTensor<A> || UsedAsTensor<B>);

template <class T>
at::Tensor operand(const T& value) {
  if constexpr (TensorOperand<T>)
    return value;
  else
    return number_operand(value);
}

}  // namespace detail

// Operators that use a variable, or a part of one, as a tensor, combined with tensors, numbers and variables.
// Templates, because they must be a better match than LibTorch's own operators, for which a variable has to be
// converted.
#define LOCKSTEP_VARIABLE_OPERATOR(symbol, name)                                               \
  template <class A, class B>                                                                  \
  requires detail::VariableOperands<A, B> at::Tensor operator symbol(const A& a, const B& b) { \
    return detail::combine(detail::BinaryOp::name, detail::operand(a), detail::operand(b));    \
  }
LOCKSTEP_VARIABLE_OPERATOR(+, Add)
LOCKSTEP_VARIABLE_OPERATOR(-, Sub)
LOCKSTEP_VARIABLE_OPERATOR(*, Mul)
LOCKSTEP_VARIABLE_OPERATOR(/, Div)
LOCKSTEP_VARIABLE_OPERATOR(%, Mod)
LOCKSTEP_VARIABLE_OPERATOR(&, And)
LOCKSTEP_VARIABLE_OPERATOR(|, Or)
LOCKSTEP_VARIABLE_OPERATOR(^, Xor)
LOCKSTEP_VARIABLE_OPERATOR(==, Eq)
LOCKSTEP_VARIABLE_OPERATOR(!=, Ne)
LOCKSTEP_VARIABLE_OPERATOR(<, Lt)
LOCKSTEP_VARIABLE_OPERATOR(<=, Le)
LOCKSTEP_VARIABLE_OPERATOR(>, Gt)
LOCKSTEP_VARIABLE_OPERATOR(>=, Ge)
#undef LOCKSTEP_VARIABLE_OPERATOR

template <detail::UsedAsTensor V>
at::Tensor operator-(const V& value) {
  return at::Tensor(value).neg();
}
template <detail::UsedAsTensor V>
at::Tensor operator~(const V& value) {
  return at::Tensor(value).bitwise_not();
}

}  // namespace lockstep
