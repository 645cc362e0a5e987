// The DCGAN of LibTorch's examples: transposed convolutions generate images of 28 x 28, two optimizers.

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kNoise = 100;

nn::Sequential make_generator() {
  const auto up = [](std::int64_t in, std::int64_t out, std::int64_t size) {
    return nn::ConvTranspose2dOptions(in, out, size).bias(false);
  };
  return nn::Sequential(nn::ConvTranspose2d(up(kNoise, 256, 4)), nn::BatchNorm2d(256), nn::ReLU(),
                        nn::ConvTranspose2d(up(256, 128, 3).stride(2).padding(1)), nn::BatchNorm2d(128), nn::ReLU(),
                        nn::ConvTranspose2d(up(128, 64, 4).stride(2).padding(1)), nn::BatchNorm2d(64), nn::ReLU(),
                        nn::ConvTranspose2d(up(64, 1, 4).stride(2).padding(1)), nn::Tanh());
}

nn::Sequential make_discriminator() {
  const auto down = [](std::int64_t in, std::int64_t out, std::int64_t size) {
    return nn::Conv2dOptions(in, out, size).stride(2).padding(1).bias(false);
  };
  const auto leaky = [] { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)); };
  return nn::Sequential(nn::Conv2d(down(1, 64, 4)), leaky(), nn::Conv2d(down(64, 128, 4)), nn::BatchNorm2d(128),
                        leaky(), nn::Conv2d(down(128, 256, 4)), nn::BatchNorm2d(256), leaky(),
                        nn::Conv2d(nn::Conv2dOptions(256, 1, 3).bias(false)), nn::Sigmoid());
}

torch::optim::AdamOptions optimizer_options() { return torch::optim::AdamOptions(2e-4).betas({0.5, 0.999}); }

Rows made_rows() { return {torch::rand({5'000, 1, 28, 28}) * 2 - 1, torch::zeros({5'000}, torch::kLong)}; }

/// The loss of each row's logit for `answer`.
torch::Tensor verdict_losses(const torch::Tensor& verdicts, double answer) {
  const auto flat = verdicts.flatten();
  return torch::binary_cross_entropy(flat, torch::full_like(flat, answer), {}, torch::Reduction::None);
}

Step plain_dcgan(const ProgramOptions& options) {
  prepare_plain(options);
  torch::manual_seed(1);
  auto generator = make_generator(), discriminator = make_discriminator();
  auto generator_optimizer = std::make_shared<torch::optim::Adam>(generator->parameters(), optimizer_options());
  auto discriminator_optimizer = std::make_shared<torch::optim::Adam>(discriminator->parameters(), optimizer_options());
  auto dataset = stacked(made_rows());
  auto loader = std::make_shared<EndlessLoader<decltype(dataset)>>(std::move(dataset), options.batch);
  return [=]() mutable {
    const auto real = loader->next().data;
    discriminator->zero_grad();
    verdict_losses(discriminator->forward(real), 0.9).mean().backward();
    const auto painted = generator->forward(torch::randn({real.size(0), kNoise, 1, 1}));
    verdict_losses(discriminator->forward(painted.detach()), 0).mean().backward();
    discriminator_optimizer->step();
    generator->zero_grad();
    verdict_losses(discriminator->forward(painted), 1).mean().backward();
    generator_optimizer->step();
  };
}

Step lockstep_dcgan(const ProgramOptions& options) {
  using Pair = std::pair<torch::Tensor, torch::Tensor>;
  auto strategy = strategy_of(options);
  auto generator = strategy->make(make_generator);
  auto discriminator = strategy->make(make_discriminator);
  auto generator_optimizer = strategy->make_optimizer<torch::optim::Adam>(generator, optimizer_options());
  auto discriminator_optimizer = strategy->make_optimizer<torch::optim::Adam>(discriminator, optimizer_options());
  const Rows rows = made_rows();
  const auto dataset = options.rows_one_by_one ? data::from_torch_dataset(rows)
                                               : data::from_tensor_slices(Pair{rows.inputs, rows.targets});
  auto batches = shuffled_batches(*strategy, dataset, *rows.size(), options.batch);
  return [=]() mutable {
    strategy->run(
        [&](const Pair& mine) {
          const auto& real = mine.first;
          discriminator_optimizer.backward(average_loss(verdict_losses(discriminator->forward(real), 0.9)));
          const auto painted = generator->forward(torch::randn({real.size(0), kNoise, 1, 1}));
          discriminator_optimizer.minimize(average_loss(verdict_losses(discriminator->forward(painted.detach()), 0)));
          generator_optimizer.minimize(average_loss(verdict_losses(discriminator->forward(painted), 1)));
          discriminator_optimizer.zero_grad();
        },
        batches->next());
  };
}

}  // namespace

Program dcgan() {
  return {64, [](const ProgramOptions& options) {
            return options.replicas == 0 ? plain_dcgan(options) : lockstep_dcgan(options);
          }};
}

}  // namespace lockstep::bench
