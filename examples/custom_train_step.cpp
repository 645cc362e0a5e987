// Does what gan_two_optimizers.cpp does, with `fit` and a training step of its own: two models, each with its own optimizer.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include "circle.h"
#include "devices.h"

namespace ls = lockstep;
using torch::Tensor;

int main(int argc, char** argv) {
  torch::manual_seed(5);
  const auto points = ls::data::from_tensor_slices(points_on_circle(12'800)).shuffle(12'800).batch(128);

  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto painter = strategy.make([] { return make_painter_or_judge(2, 2); });
  auto judge = strategy.make([] { return make_painter_or_judge(2, 1); });
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9});
  auto of_painter = strategy.make_optimizer<torch::optim::Adam>(painter, options);
  auto of_judge = strategy.make_optimizer<torch::optim::Adam>(judge, options);

  ls::train::Model model(painter, of_painter, {});
  model.set_train_step([&](const Tensor& real) {
    const auto painted = painter->forward(torch::randn_like(real));

    const auto judging = verdict_loss(judge->forward(real), 1) + verdict_loss(judge->forward(painted.detach()), 0);
    of_judge.minimize(ls::average_loss(judging));

    const auto painting = verdict_loss(judge->forward(painted), 1);
    of_painter.minimize(ls::average_loss(painting));
    of_judge.zero_grad();  // backward went through the judge and left gradients there
    return ls::train::StepLogs{{"judge", judging.detach()}, {"painter", painting.detach()}};
  });
  model.fit(points, {.epochs = 10});

  const auto noise = ls::data::from_tensor_slices(torch::randn({500, 2})).batch(128);
  return show_circle(model.predict(noise)) ? 0 : 1;
}
