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
  auto generator = strategy.make([] { return make_network(2, 2); });
  auto discriminator = strategy.make([] { return make_network(2, 1); });
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9});
  auto generator_optimizer = strategy.make_optimizer<torch::optim::Adam>(generator, options);
  auto discriminator_optimizer = strategy.make_optimizer<torch::optim::Adam>(discriminator, options);

  ls::train::Model model(generator, generator_optimizer, {});
  model.set_train_step([&](const Tensor& real) {
    const auto fake = generator->forward(torch::randn_like(real));

    const auto discriminator_losses =
        adversarial_loss(discriminator->forward(real), 1) + adversarial_loss(discriminator->forward(fake.detach()), 0);
    discriminator_optimizer.minimize(ls::average_loss(discriminator_losses));

    const auto generator_losses = adversarial_loss(discriminator->forward(fake), 1);
    generator_optimizer.minimize(ls::average_loss(generator_losses));
    discriminator_optimizer.zero_grad();  // backward went through the discriminator and left gradients there
    return ls::train::StepLogs{{"d_loss", discriminator_losses.detach()}, {"g_loss", generator_losses.detach()}};
  });
  model.fit(points, {.epochs = 10});

  const auto noise = ls::data::from_tensor_slices(torch::randn({500, 2})).batch(128);
  return show_circle(model.predict(noise)) ? 0 : 1;
}
