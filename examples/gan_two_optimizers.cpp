// Trains two models in one step, each with its own optimizer: a generator learns to place points on a circle that it has
// never seen, from a discriminator that learns to separate generated from real points. `--device gpu` trains on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "circle.h"
#include "devices.h"

namespace ls = lockstep;

int main(int argc, char** argv) {
  constexpr std::int64_t kPoints = 64;  // per replica
  torch::manual_seed(5);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  const auto device = strategy.replica_context(0).device();
  auto generator = strategy.make([] { return make_network(2, 2); });
  auto discriminator = strategy.make([] { return make_network(2, 1); });
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.9});
  auto generator_optimizer = strategy.make_optimizer<torch::optim::Adam>(generator, options);
  auto discriminator_optimizer = strategy.make_optimizer<torch::optim::Adam>(discriminator, options);

  struct Losses {
    double generator, discriminator;
  };
  auto step = [&] {
    // Every replica draws from its own random stream, so together they see 2 * kPoints different points.
    const auto real = points_on_circle(kPoints, device);
    const auto fake = generator->forward(torch::randn({kPoints, 2}, device));

    const auto discriminator_losses =
        adversarial_loss(discriminator->forward(real), 1) + adversarial_loss(discriminator->forward(fake.detach()), 0);
    const auto discriminator_loss = ls::average_loss(discriminator_losses);
    discriminator_optimizer.minimize(discriminator_loss);

    const auto generator_loss = ls::average_loss(adversarial_loss(discriminator->forward(fake), 1));
    generator_optimizer.minimize(generator_loss);
    discriminator_optimizer.zero_grad();  // backward went through the discriminator and left gradients there
    return Losses{generator_loss.item<double>(), discriminator_loss.item<double>()};
  };

  std::printf("  step   generator loss   discriminator loss\n");
  for (int k = 1; k <= 1500; ++k) {
    const auto losses = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step));
    if (k % 300 == 0) std::printf("%6d   %14.3f   %18.3f\n", k, losses.generator, losses.discriminator);
  }

  const torch::NoGradGuard no_grad;
  const auto points = generator->forward(torch::randn({500, 2}, device)).cpu();
  return show_circle(points) ? 0 : 1;
}
