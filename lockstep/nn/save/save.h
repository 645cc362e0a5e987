#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <source_location>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/nn/mirrored_optimizer.h"

// Models and optimizers in safetensors files, which Python reads too (docs/saving.md).
//
//     ls::save("run.safetensors", model, optimizer);
//     ls::load("run.safetensors", model, optimizer);     // any number of replicas
//
// A file is replaced atomically: after a failure or a kill it is the old or the new one. All functions but
// `load_tensors` and `load_metadata` belong outside of run.
namespace lockstep {

/// Options of `load`.
struct LoadOptions {
  /// Whether file and model must have the same tensors, with the same shapes and types. Otherwise the matching ones are
  /// loaded, and a warning names the rest.
  bool strict = true;
};

/// Options of `save`.
struct SaveOptions {
  /// False: all workers call `save`, the buffers of all replicas are merged, and the chief writes the file. True: this
  /// worker writes its own state without the others, for example after one of them failed.
  bool this_worker_only = false;
};

namespace detail {

struct OptimizerCore;

/// A module without replicas, or an optimizer without its model.
template <class T>
concept NotMirrored = !is_mirrored_module_v<T> && (BuiltModule<T> || std::is_base_of_v<MirroredOptimizerBase, T>);

/// The arguments that may follow the model in a call of save or load.
template <class Options>
struct AfterModel {
  void operator()(const Options& = {}) const;
  void operator()(const MirroredOptimizerBase&, const Options& = {}) const;
};
template <class Options, class... Args>
inline constexpr bool begins_with_model_v = false;
template <class Options, class M, class... Rest>
inline constexpr bool begins_with_model_v<Options, MirroredModule<M>, Rest...> =
    std::is_invocable_v<AfterModel<Options>, const Rest&...>;

/// The type returned by `named_parameters()`, or an unordered map.
template <class T>
concept NamedTensors = std::is_same_v<T, torch::OrderedDict<std::string, at::Tensor>> ||
    std::is_same_v<T, std::unordered_map<std::string, at::Tensor>>;
template <class... Args>
inline constexpr bool is_tensors_v = false;
template <class T>
inline constexpr bool is_tensors_v<T> =
    NamedTensors<T> || std::is_convertible_v<const T&, const std::map<std::string, at::Tensor>&>;

LOCKSTEP_EXPORT void save_model(const std::string& path, const ModuleCore& model, const OptimizerCore* optimizer,
                                const SaveOptions& options, const std::source_location& where);
LOCKSTEP_EXPORT void load_model(const std::string& path, ModuleCore& model, OptimizerCore* optimizer,
                                const LoadOptions& options, const std::source_location& where);

}  // namespace detail

/// Saves the weights, and the buffers as `model.named_buffers()` returns them.
template <class M>
void save(const std::string& path, const MirroredModule<M>& model, const SaveOptions& options = {},
          const std::source_location& where = std::source_location::current()) {
  detail::save_model(path, *model.core(), nullptr, options, where);
}
/// Saves everything that `load` needs to continue, including the optimizer's state and its number of steps.
template <class M>
void save(const std::string& path, const MirroredModule<M>& model, const MirroredOptimizerBase& optimizer,
          const SaveOptions& options = {}, const std::source_location& where = std::source_location::current()) {
  detail::save_model(path, *model.core(), optimizer.core().get(), options, where);
}

/// Writes the tensors of a file into the weights and the buffers of all replicas. With several workers all of them call
/// it, and the chief reads the file for all. If anything does not fit, an error lists all of it and nothing is changed.
/// Ignores an optimizer's state in the file.
template <class M>
void load(const std::string& path, const MirroredModule<M>& model, const LoadOptions& options = {},
          const std::source_location& where = std::source_location::current()) {
  detail::load_model(path, *model.core(), nullptr, options, where);
}
/// The same with the optimizer's state and number of steps, for the same class of optimizer.
template <class M>
void load(const std::string& path, const MirroredModule<M>& model, const MirroredOptimizerBase& optimizer,
          const LoadOptions& options = {}, const std::source_location& where = std::source_location::current()) {
  detail::load_model(path, *model.core(), optimizer.core().get(), options, where);
}

// The arguments of torch::save and torch::load, so that the compiler can explain what these functions accept.
template <class M, class... Rest>
void save(const MirroredModule<M>&, const Rest&...) {
  static_assert(detail::never<M>, "lockstep::save takes the path first: save(path, model)");
}
template <class M, class... Rest>
void load(const MirroredModule<M>&, const Rest&...) {
  static_assert(detail::never<M>, "lockstep::load takes the path first: load(path, model)");
}
template <class T, class... Rest>
  requires(!detail::begins_with_model_v<SaveOptions, T, Rest...> && !detail::is_tensors_v<T, Rest...>)
void save(const std::string&, const T&, const Rest&...) {
  if constexpr (detail::NotMirrored<T>) {
    static_assert(
        detail::never<T>,
        "lockstep::save(path, model, optimizer) saves the model that strategy.make returned, and its optimizer "
        "with it; torch::save saves a plain module");
  } else if constexpr (detail::is_mirrored_module_v<T>) {
    static_assert(detail::never<T>,
                  "lockstep::save(path, model, optimizer) saves one model and its optimizer, with SaveOptions at the "
                  "end: give each pair a file of its own, and keep a GradScaler's state() yourself");
  } else {
    static_assert(
        detail::never<T>,
        "lockstep::save(path, tensors) saves a std::map<std::string, torch::Tensor>: give every tensor a name");
  }
}
template <class T, class... Rest>
  requires(!detail::begins_with_model_v<LoadOptions, T, Rest...>)
void load(const std::string&, const T&, const Rest&...) {
  if constexpr (detail::is_mirrored_module_v<T>) {
    static_assert(detail::never<T>,
                  "lockstep::load(path, model, optimizer) loads one model and its optimizer, with LoadOptions at the "
                  "end: load(path, model, {.strict = false})");
  } else {
    static_assert(
        detail::never<T>,
        "lockstep::load(path, model, optimizer) loads into the model that strategy.make returned, and into its "
        "optimizer with it; load_tensors(path) returns the tensors of a file");
  }
}
template <class T = void>
std::map<std::string, at::Tensor> load(const std::string&) {
  static_assert(detail::never<T>,
                "lockstep::load(path, model) loads into a model; load_tensors(path) returns the tensors of a file");
  return {};
}

/// Saves tensors under your own names, such as averaged weights.
LOCKSTEP_EXPORT void save(const std::string& path, const std::map<std::string, at::Tensor>& tensors);
/// The same for the result of `named_parameters()`, and for an unordered map.
template <detail::NamedTensors T>
void save(const std::string& path, const T& tensors) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& item : tensors) {
    if constexpr (requires { item.key(); }) {
      by_name.emplace(item.key(), item.value());
    } else {
      by_name.insert(item);
    }
  }
  save(path, by_name);
}
/// All tensors of a safetensors file, as copies on the CPU.
LOCKSTEP_EXPORT std::map<std::string, at::Tensor> load_tensors(const std::string& path);
/// A file's metadata: `lockstep.steps`, `lockstep.seed`, `lockstep.version` and the like, all as text.
LOCKSTEP_EXPORT std::map<std::string, std::string> load_metadata(const std::string& path);

}  // namespace lockstep
