#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "lockstep/contrib.h"
#include "lockstep/lockstep.h"

namespace lockstep::contrib {
namespace {

struct OneWeight : torch::nn::Module {
  OneWeight() { w = register_parameter("w", at::full({1, 1}, 2.0)); }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(w); }
  at::Tensor w;
};

double weight_after_one_step(int towers, LossReduction reduction) {
  MirroredStrategy strategy({.devices = cpus(towers)});
  auto model = strategy.core().make<OneWeight>();
  auto optimizer = strategy.core().make_optimizer<torch::optim::SGD>(model, 0.2);
  const at::Tensor x = at::tensor({2.0F, 7.0F}).view({2, 1}), y = at::tensor({6.0F, 21.0F}).view({2, 1});
  strategy.call_for_each_tower([&] {
    const auto how = reduction == LossReduction::MEAN ? at::Reduction::Mean : at::Reduction::Sum;
    minimize(optimizer, at::mse_loss(model->forward(x), y, how), reduction);
  });
  return model.replica(0)->w.item<double>();
}

// names: LossReduction
TEST(ContribLosses, AMeanCountsOncePerTower) {
  for (int n = 1; n <= 3; ++n) {
    EXPECT_NEAR(weight_after_one_step(n, LossReduction::SUM), 2 + 21.2 * n, 1e-4) << n;
    EXPECT_NEAR(weight_after_one_step(n, LossReduction::MEAN), 2 + 10.6, 1e-4) << n;
  }
}

}  // namespace
}  // namespace lockstep::contrib
