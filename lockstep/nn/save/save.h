#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <type_traits>

#include "lockstep/base/export.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/nn/mirrored_optimizer.h"

// Models and optimizers in safetensors files, which Python reads too (docs/saving.md).
//
//     ls::save("run.safetensors", model, optimizer);
//     ls::load("run.safetensors", model, optimizer);     // any number of replicas
//
// A file is replaced as a whole: after a failure or a kill it is the old one or the new one. All but `load_tensors` and
// `load_metadata` belong outside of run.
namespace lockstep {

struct LoadOptions {
  /// Whether file and model must have the same tensors, in the same shapes and types. Otherwise what fits is loaded, and
  /// a warning names the rest.
  bool strict = true;
};

struct SaveOptions {
  /// False: all workers call `save`, the buffers of all replicas count, and the chief writes the file. True: this worker
  /// writes what it has by itself, without the others; for example after one of them has failed.
  bool this_worker_only = false;
};

namespace detail {

struct OptimizerCore;

/// A module without replicas, or an optimizer without its model.
template <class T>
concept NotMirrored = !is_mirrored_module_v<T> && (BuiltModule<T> || std::is_base_of_v<MirroredOptimizerBase, T>);

LOCKSTEP_EXPORT void save_model(const std::string& path, const ModuleCore& model, const OptimizerCore* optimizer,
                                const SaveOptions& options);
LOCKSTEP_EXPORT void load_model(const std::string& path, ModuleCore& model, OptimizerCore* optimizer,
                                const LoadOptions& options);

}  // namespace detail

/// Saves the weights, and the buffers as `model.named_buffers()` returns them.
template <class M>
void save(const std::string& path, const MirroredModule<M>& model, const SaveOptions& options = {}) {
  detail::save_model(path, *model.core(), nullptr, options);
}
/// Saves all that `load` needs to go on: also what the optimizer remembers, and its number of steps.
template <class M>
void save(const std::string& path, const MirroredModule<M>& model, const MirroredOptimizerBase& optimizer,
          const SaveOptions& options = {}) {
  detail::save_model(path, *model.core(), optimizer.core().get(), options);
}

/// Writes the tensors of a file into the weights and the buffers of all replicas. With several workers all of them call it,
/// and the chief reads the file for all. If anything does not fit, an error lists all of it and nothing is changed. State of
/// an optimizer in the file is ignored.
template <class M>
void load(const std::string& path, const MirroredModule<M>& model, const LoadOptions& options = {}) {
  detail::load_model(path, *model.core(), nullptr, options);
}
/// The same with the optimizer's state and number of steps, for the same class of optimizer.
template <class M>
void load(const std::string& path, const MirroredModule<M>& model, const MirroredOptimizerBase& optimizer,
          const LoadOptions& options = {}) {
  detail::load_model(path, *model.core(), optimizer.core().get(), options);
}

// What torch::save and torch::load take, for the compiler to say what these take.
template <class M, class... Rest>
void save(const MirroredModule<M>&, const Rest&...) {
  static_assert(detail::never<M>, "lockstep::save takes the path first: save(path, model)");
}
template <class M, class... Rest>
void load(const MirroredModule<M>&, const Rest&...) {
  static_assert(detail::never<M>, "lockstep::load takes the path first: load(path, model)");
}
template <detail::NotMirrored T, class... Rest>
void save(const std::string&, const T&, const Rest&...) {
  static_assert(detail::never<T>,
                "lockstep::save(path, model, optimizer) saves the model that strategy.make returned, and its optimizer "
                "with it; torch::save saves a plain module");
}
template <detail::NotMirrored T, class... Rest>
void load(const std::string&, const T&, const Rest&...) {
  static_assert(detail::never<T>,
                "lockstep::load(path, model, optimizer) loads into the model that strategy.make returned, and into its "
                "optimizer with it; load_tensors(path) returns the tensors of a file");
}

/// Saves tensors under names of your own, such as averaged weights.
LOCKSTEP_EXPORT void save(const std::string& path, const std::map<std::string, at::Tensor>& tensors);
/// All tensors of a safetensors file, as copies on the CPU.
LOCKSTEP_EXPORT std::map<std::string, at::Tensor> load_tensors(const std::string& path);
/// What else a file says: `lockstep.steps`, `lockstep.seed`, `lockstep.version` and the like, all as text.
LOCKSTEP_EXPORT std::map<std::string, std::string> load_metadata(const std::string& path);

}  // namespace lockstep
