#include "lockstep/nn/save/optimizer_entries.h"

#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::detail {
namespace {

constexpr const char* kIndices = ".indices";
constexpr const char* kValues = ".values";
constexpr const char* kShape = ".shape";

[[noreturn]] void damaged(const std::string& name, const std::string& why) {
  throw DataLoss(errors::kSafetensors, {.what = lockstep::str("the sparse tensor '", name, "' of the file ", why),
                                        .where = "load",
                                        .help = "use another copy of the file, or save it again with ls::save"});
}

at::Tensor sparse_tensor(const std::string& name, const TensorMap& tensors) {
  const auto part = [&](const char* suffix) -> const at::Tensor& {
    const auto found = tensors.find(name + suffix);
    if (found == tensors.end()) damaged(name, lockstep::str("has no '", suffix, "'"));
    return found->second;
  };
  const at::Tensor& shape = part(kShape);
  if (shape.scalar_type() != at::kLong || shape.dim() != 1) damaged(name, "has a shape that is not a list of numbers");
  const auto* const extents = static_cast<const std::int64_t*>(shape.const_data_ptr());
  const std::vector<std::int64_t> sizes(extents, extents + shape.numel());
  try {
    at::_validate_sparse_coo_tensor_args(part(kIndices), part(kValues), sizes);
    return at::sparse_coo_tensor(part(kIndices), part(kValues), sizes).coalesce();
  } catch (const c10::Error& error) {
    damaged(name, lockstep::str("has parts that do not fit: ", error.what_without_backtrace()));
  }
}

}  // namespace

std::string_view parameter_of_entry(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (!is_optimizer_entry(name) || slash < kOptimizerPrefix.size()) return {};
  return name.substr(kOptimizerPrefix.size(), slash - kOptimizerPrefix.size());
}

void add_optimizer_entries(const OptimizerState& state, TensorMap& tensors) {
  for (const auto& [parameter, parts] : state) {
    if (parameter.empty()) continue;
    for (const auto& [key, value] : parts) {
      if (key.empty() || key.find_first_of("/.") != std::string::npos) {
        throw InvalidArgument(errors::kOptimizer,
                              {.what = lockstep::str("an optimizer's state cannot be saved under the key '", key, "'"),
                               .where = lockstep::str("save, state of '", parameter, "'"),
                               .help = "use keys without '/' and '.' in your OptimizerStateTraits"});
      }
      const std::string name = lockstep::str(kOptimizerPrefix, parameter, '/', key);
      if (value.layout() != at::kSparse) {
        tensors[name] = value;
        continue;
      }
      const at::Tensor ordered = value.coalesce();
      tensors[name + kIndices] = ordered.indices();
      tensors[name + kValues] = ordered.values();
      tensors[name + kShape] = at::tensor(value.sizes().vec(), at::kLong);
    }
  }
}

OptimizerState optimizer_state_of(const TensorMap& tensors) {
  OptimizerState state;
  for (const auto& [name, value] : tensors) {
    const std::string parameter(parameter_of_entry(name));
    const std::size_t start = kOptimizerPrefix.size() + parameter.size() + 1;
    const std::size_t dot = name.find('.', start);
    if (dot == std::string::npos) {
      state[parameter][name.substr(start)] = value;
    } else {
      at::Tensor& whole = state[parameter][name.substr(start, dot - start)];
      if (!whole.defined()) whole = sparse_tensor(name.substr(0, dot), tensors);
    }
  }
  return state;
}

}  // namespace lockstep::detail
