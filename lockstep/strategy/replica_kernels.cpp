#include "lockstep/strategy/replica_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "lockstep/strategy/replica_context.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep {
namespace {

thread_local auto own_kernels = OwnKernels::None;

#if defined(__aarch64__)
/// Stands before `aten::convolution` on replica threads.
void convolution(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr std::size_t kArguments = 9;  // input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
  const auto argument = [&](std::size_t i) -> c10::IValue& { return torch::jit::peek(*stack, i, kArguments); };
  const at::Tensor& input = argument(0).toTensor();
  const bool unsafe = input.scalar_type() == at::kBFloat16 && input.is_cpu() && in_replica_context() && get_replica_context().num_replicas_in_sync() > 1;
  if (unsafe) {
    for (const std::size_t i : {0U, 1U, 2U}) {
      if (argument(i).isTensor() && argument(i).toTensor().defined()) argument(i) = argument(i).toTensor().to(at::kFloat);
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kReplicaDispatchKey), stack);
  if (unsafe) stack->back() = stack->back().toTensor().to(at::kBFloat16);
}

void register_safe_convolutions() {
  // Never unregistered: a thread may still be inside the operator when the process ends.
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", kReplicaDispatchKey, __FILE__, __LINE__);
  library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&convolution>());
}
#else
void register_safe_convolutions() {}
#endif

}  // namespace

void use_safe_convolutions() {
  static const bool registered = (register_safe_convolutions(), true);
  (void)registered;
}

OwnKernels own_kernels_here() { return own_kernels; }

OwnKernelsScope::OwnKernelsScope(OwnKernels which) : outer_(own_kernels) { own_kernels = which; }
OwnKernelsScope::~OwnKernelsScope() { own_kernels = outer_; }

OwnKernels plan_own_kernels(std::optional<bool> asked, int num_replicas_in_sync, bool on_cpu) {
  if (asked) return *asked ? OwnKernels::All : OwnKernels::None;
  return on_cpu && num_replicas_in_sync > 1 ? OwnKernels::Faster : OwnKernels::SameBits;
}

}  // namespace lockstep
