#pragma once

namespace lockstep {

/// How `strategy.make` builds a model.
struct ModuleOptions {
  /// Keep the weights of 2-D convolutions channels-last, which is faster on CPU. The weights alone decide: `model(x)`
  /// and `model->forward(x)` pass `x` on as it is, and LibTorch converts it in the first convolution. Everything after
  /// that is channels-last already.
  bool channels_last = false;
};

}  // namespace lockstep
