#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep {

inline const at::Device kGpu(at::kCUDA, 0);

/// The options of a strategy with this many replicas on the first GPU.
inline MirroredOptions on_gpu(int replicas) { return {.devices = replicas == 1 ? gpus(1) : logical_gpus(replicas)}; }

/// Keeps the calling thread's stream busy for a few milliseconds and returns zeros computed after that: code that does
/// not wait for the stream sees the previous contents of the memory.
inline at::Tensor slow_zeros(const at::IntArrayRef& sizes) {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::ones({1536, 1536}, kGpu);
  for (int i = 0; i < 12; ++i) x = at::matmul(x, x).clamp(0, 1);
  return x.sum().sub(1536.0 * 1536.0).mul(0).expand(sizes).clone();
}

/// The output of two layers of an LSTM, with half of the activations between them dropped out.
inline at::Tensor lstm_with_dropout() {
  const at::Tensor steps = at::ones({7, 5, 16}, kGpu);
  const at::Tensor state = at::ones({2, 5, 16}, kGpu);
  const std::vector<at::Tensor> weights(4, at::ones({64, 16}, kGpu).mul(0.1));
  return std::get<0>(at::lstm(steps, {state, state}, weights, /*has_biases=*/false, /*num_layers=*/2, /*dropout=*/0.5,
                              /*train=*/true, /*bidirectional=*/false, /*batch_first=*/false));
}

inline std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().cpu());
  return copies;
}

}  // namespace lockstep
