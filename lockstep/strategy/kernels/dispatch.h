#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

// How a kernel of Lockstep's comes before LibTorch's: one way for all of them.
namespace lockstep::kernels {

/// Kernels registered under this key are called on replica threads only, before LibTorch's own; operators without one
/// fall through. The key is active inside a GeneratorScope (strategy/replica_random.h).
inline constexpr auto kReplicaDispatchKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// A kernel for any operator: its arguments lie on the stack, and its results take their place there.
using BoxedKernel = void(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Passes a call on to what LibTorch does without Lockstep.
inline void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kReplicaDispatchKey), stack);
}

/// Puts `kernel` before `aten::<name>` on replica threads, for as long as the process lives: a thread may still be
/// inside the operator when it ends.
template <BoxedKernel* kernel>
void put_before_libtorch(const char* name) {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", kReplicaDispatchKey, __FILE__, __LINE__);
  library.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
}

}  // namespace lockstep::kernels
