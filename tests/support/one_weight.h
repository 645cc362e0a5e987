#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

namespace lockstep {

/// y = w x, with one weight, which is 1.
struct OneWeight : torch::nn::Module {
  OneWeight() { w = register_parameter("w", torch::ones({1})); }
  at::Tensor forward(const at::Tensor& x) { return w * x; }
  at::Tensor w;
};

inline double weight_of(const MirroredModule<OneWeight>& model) { return model->w.item<double>(); }

/// A model of one weight and its optimizer; the parameter is the number of replicas.
class OneWeightTest : public testing::TestWithParam<int> {
 protected:
  OneWeightTest() : strategy(on_devices(GetParam())), model(strategy.make<OneWeight>()) {
    set_log_severity(Severity::Info);
  }
  int replicas() const { return GetParam(); }

  MirroredStrategy strategy;
  MirroredModule<OneWeight> model;
  MirroredOptimizer<torch::optim::SGD> optimizer = strategy.make_optimizer<torch::optim::SGD>(model, 1.0);
};

}  // namespace lockstep
