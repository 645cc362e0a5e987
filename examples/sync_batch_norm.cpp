// Batch normalisation on three replicas. An ordinary layer sees only the rows of its own replica. A synchronized layer
// sees the whole batch, and its outputs, gradients and running statistics are those of one large layer. `--device gpu` puts
// the replicas on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "devices.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

/// Everything a layer computes from a batch.
struct Result {
  Tensor output, input_gradient, running_mean, running_var;
};

Result forward_and_back(nn::BatchNorm2dImpl& layer, const Tensor& rows, const Tensor& outer) {
  const auto input = rows.clone().requires_grad_();
  const auto output = layer.forward(input);
  (output * outer).sum().backward();
  return {output.detach(), input.grad(), layer.running_mean, layer.running_var};
}

double difference(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

/// The largest difference between the layer on replicas and one layer over the whole batch.
double compare(const char* title, ls::Strategy& strategy, ls::MirroredModule<nn::BatchNorm2dImpl>& layer) {
  torch::manual_seed(5);
  const auto device = strategy.replica_context(0).device();
  const auto batch = (torch::randn({8, 3, 4, 4}) * 2 + torch::arange(8).reshape({8, 1, 1, 1})).to(device);
  const auto outer = torch::randn({8, 3, 4, 4}).to(device);
  nn::BatchNorm2d whole(3);
  whole->to(device);
  const Result expected = forward_and_back(*whole, batch, outer);

  const auto results = strategy.run([&] {
    const auto& replica = ls::get_replica_context();
    const int k = replica.replica_id_in_sync_group(), n = replica.num_replicas_in_sync();
    return forward_and_back(*layer, batch.tensor_split(n)[k], outer.tensor_split(n)[k]);  // 3, 3 and 2 rows
  });
  const Result together = strategy.gather(results, /*axis=*/0);
  const double worst = std::max(difference(together.output, expected.output),
                                difference(together.input_gradient, expected.input_gradient));
  std::printf("%s\n", title);
  std::printf("    outputs differ by at most          %.7f\n", difference(together.output, expected.output));
  std::printf("    gradients of the input             %.7f\n",
              difference(together.input_gradient, expected.input_gradient));
  std::printf("    running mean of replica 1          %.7f\n",
              difference(results[1].running_mean, expected.running_mean));
  std::printf("    running variance of replica 1      %.7f\n",
              difference(results[1].running_var, expected.running_var));
  return worst;
}

int main(int argc, char** argv) {
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 3)});
  auto plain = strategy.make<nn::BatchNorm2d>(3);
  const double off = compare("BatchNorm2d, against one layer over the whole batch:", strategy, plain);

  // For a model written with ordinary layers. In your own code use ls::nn::SyncBatchNorm2d instead of nn::BatchNorm2d.
  auto converted = strategy.make<nn::BatchNorm2d>(3);
  const int layers = ls::nn::convert_sync_batch_norm(converted);
  const double synced = compare("\nThe same after convert_sync_batch_norm:", strategy, converted);
  return layers == 1 && off > 0.1 && synced < 1e-5 ? 0 : 1;
}
