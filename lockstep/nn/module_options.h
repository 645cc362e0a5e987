#pragma once

namespace lockstep {

/// How `strategy.make` builds a model.
struct ModuleOptions {
  /// Keep the weights of 2-D convolutions channels-last, which is faster on CPU. Only the weights are converted:
  /// `model(x)` and `model->forward(x)` pass `x` on unchanged, and LibTorch converts it in the first convolution.
  /// Everything after that is channels-last already.
  bool channels_last = false;
};

}  // namespace lockstep
