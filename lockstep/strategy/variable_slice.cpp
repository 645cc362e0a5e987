#include <ATen/ScalarOps.h>
#include <ATen/TensorIndexing.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/variable.h"
#include "lockstep/strategy/variable_impl.h"

// Variables in expressions: parts of them, and arithmetic with them.
namespace lockstep {

using at::indexing::TensorIndex;

/// Which part of a variable: index lists, applied one after the other.
struct VariablePlace {
  std::vector<std::vector<TensorIndex>> steps;
};

namespace {

/// A step that chooses by a tensor gives a copy; what is written to that has to be put back.
bool gives_view(const std::vector<TensorIndex>& step) {
  return std::none_of(step.begin(), step.end(), [](const TensorIndex& i) { return i.is_tensor() || i.is_boolean(); });
}

at::Tensor taken(const at::Tensor& whole, const std::vector<TensorIndex>& step) {
  try {
    return whole.index(step);
  } catch (const c10::Error& e) {
    throw InvalidArgument(errors::kShape, {.what = lockstep::str("an index does not fit into shape ", whole.sizes()),
                                           .where = "a slice of a variable",
                                           .seen = e.what_without_backtrace(),
                                           .help = "index within the variable's shape(), as LibTorch's index does"});
  }
}

bool is_same_index(const TensorIndex& a, const TensorIndex& b) {
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_ellipsis() || b.is_ellipsis()) return a.is_ellipsis() && b.is_ellipsis();
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_boolean() && b.is_boolean()) return a.boolean() == b.boolean();
  if (a.is_slice() && b.is_slice()) {
    return a.slice().start() == b.slice().start() && a.slice().stop() == b.slice().stop() &&
           a.slice().step() == b.slice().step();
  }
  return a.is_tensor() && b.is_tensor() && (a.tensor().is_same(b.tensor()) || at::equal(a.tensor(), b.tensor()));
}

std::shared_ptr<const VariablePlace> place_in(const VariablePlace* outer, std::vector<TensorIndex> step) {
  auto place = std::make_shared<VariablePlace>();
  if (outer) place->steps = outer->steps;
  place->steps.push_back(std::move(step));
  return place;
}

}  // namespace

namespace detail {

at::Tensor part_of(const at::Tensor& whole, const VariablePlace* place) {
  at::Tensor part = whole;
  if (place) {
    for (const auto& step : place->steps) part = taken(part, step);
  }
  return part;
}

void change_part(at::Tensor& whole, const VariablePlace& place, FunctionRef<void(at::Tensor&)> change) {
  at::Tensor target = whole;
  for (std::size_t i = 0; i + 1 < place.steps.size(); ++i) {
    if (!gives_view(place.steps[i])) {
      throw InvalidArgument(errors::kVariableAssign,
                            {.what = "a part of a part that was chosen by a tensor cannot be written",
                             .where = "a slice of a variable",
                             .help = "write all indices at once: variable.index({mask, 0}) = value"});
    }
    target = taken(target, place.steps[i]);
  }
  const auto& last = place.steps.back();
  at::Tensor part = taken(target, last);
  change(part);
  if (!gives_view(last)) target.index_put_(last, part);
}

bool is_same_place(const VariablePlace* a, const VariablePlace* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return std::equal(
      a->steps.begin(), a->steps.end(), b->steps.begin(), b->steps.end(),
      [](const auto& x, const auto& y) { return std::equal(x.begin(), x.end(), y.begin(), y.end(), is_same_index); });
}

std::string text_of(const VariablePlace& place) {
  std::string text;
  for (const auto& step : place.steps) text += lockstep::str("[", step, "]");
  return text;
}

at::Tensor number_operand(const c10::Scalar& number) {
  at::Tensor operand = c10::scalar_to_tensor(number);
  operand.unsafeGetTensorImpl()->set_wrapped_number(true);
  return operand;
}

at::Tensor combine(BinaryOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case BinaryOp::Add: return a.add(b);
    case BinaryOp::Sub: return a.sub(b);
    case BinaryOp::Mul: return a.mul(b);
    case BinaryOp::Div: return a.div(b);
    case BinaryOp::Mod: return a.remainder(b);
    case BinaryOp::And: return a.bitwise_and(b);
    case BinaryOp::Or: return a.bitwise_or(b);
    case BinaryOp::Xor: return a.bitwise_xor(b);
    case BinaryOp::Eq: return a.eq(b);
    case BinaryOp::Ne: return a.ne(b);
    case BinaryOp::Lt: return a.lt(b);
    case BinaryOp::Le: return a.le(b);
    case BinaryOp::Gt: return a.gt(b);
    case BinaryOp::Ge: return a.ge(b);
  }
  return {};
}

}  // namespace detail

VariableSlice Variable::operator[](std::int64_t index) const { return (*this)[TensorIndex(index)]; }
VariableSlice Variable::operator[](const TensorIndex& index) const { return {*this, place_in(nullptr, {index})}; }
VariableSlice Variable::index(std::initializer_list<TensorIndex> indices) const {
  return {*this, place_in(nullptr, indices)};
}
at::Tensor Variable::index_put_(std::initializer_list<TensorIndex> indices, const VariableValue& value,
                                ReadBack read_back) {
  return index(indices).assign(value, read_back);
}

VariableSlice VariableSlice::operator[](std::int64_t index) const { return (*this)[TensorIndex(index)]; }
VariableSlice VariableSlice::operator[](const TensorIndex& index) const {
  return {variable_, place_in(place_.get(), {index})};
}
VariableSlice VariableSlice::index(std::initializer_list<TensorIndex> indices) const {
  return {variable_, place_in(place_.get(), indices)};
}

at::Tensor VariableSlice::read() const { return detail::part_of(variable_.read(), place_.get()); }
VariableSlice::operator at::Tensor() const { return detail::part_of(at::Tensor(variable_), place_.get()); }

at::Tensor VariableSlice::assign(const VariableValue& value, ReadBack read_back) {
  return detail::write(variable_, {detail::Change::Set, "assign to a slice", place_}, value, read_back);
}
at::Tensor VariableSlice::assign_add(const VariableValue& value, ReadBack read_back) {
  return detail::write(variable_, {detail::Change::Add, "assign_add to a slice", place_}, value, read_back);
}
at::Tensor VariableSlice::assign_sub(const VariableValue& value, ReadBack read_back) {
  return detail::write(variable_, {detail::Change::Sub, "assign_sub to a slice", place_}, value, read_back);
}

VariableSlice& VariableSlice::operator=(const VariableValue& value) {
  assign(value, ReadBack::No);
  return *this;
}
VariableSlice& VariableSlice::operator+=(const VariableValue& value) {
  assign_add(value, ReadBack::No);
  return *this;
}
VariableSlice& VariableSlice::operator-=(const VariableValue& value) {
  assign_sub(value, ReadBack::No);
  return *this;
}

}  // namespace lockstep
