// A variational autoencoder of fully connected layers for images of 784 numbers.

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

struct VaeNetImpl : nn::Module {
  VaeNetImpl() : encoder(784, 400), mean(400, 20), log_variance(400, 20), hidden(20, 400), decoder(400, 784) {
    register_module("encoder", encoder);
    register_module("mean", mean);
    register_module("log_variance", log_variance);
    register_module("hidden", hidden);
    register_module("decoder", decoder);
  }
  /// The loss of each row: reconstruction and divergence.
  torch::Tensor losses(const torch::Tensor& images) {
    const auto x = images.flatten(1), code = torch::relu(encoder(x));
    const auto mu = mean(code), log_var = log_variance(code);
    const auto z = mu + torch::randn_like(mu) * torch::exp(0.5 * log_var);
    const auto painted = torch::sigmoid(decoder(torch::relu(hidden(z))));
    const auto wrong = torch::binary_cross_entropy(painted, x, {}, torch::Reduction::None).sum(1);
    return wrong - 0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(1);
  }

  nn::Linear encoder, mean, log_variance, hidden, decoder;
};
TORCH_MODULE(VaeNet);

struct Vae {
  using Net = VaeNet;
  using Optimizer = torch::optim::Adam;
  static auto optimizer_options() { return torch::optim::AdamOptions(1e-3); }
  static Rows rows() { return {torch::rand({10'000, 1, 28, 28}), torch::zeros({10'000}, torch::kLong)}; }
  static auto transformed(Rows rows) { return rows; }
  static torch::Tensor losses(VaeNetImpl& net, const torch::data::Example<>& batch) { return net.losses(batch.data); }
};

}  // namespace

Program vae() { return one_network<Vae>(128); }

}  // namespace lockstep::bench
