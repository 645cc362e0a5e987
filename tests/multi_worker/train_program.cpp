// A worker that trains on the digits: `train_program REPLICAS [batch_norm] [clip] [sparse] [...]`. The cluster comes from
// TF_CONFIG; without it, it is one worker. LOCKSTEP_TEST_DEVICES=gpu puts the replicas of all on the first GPU. Prints a
// digest of the weights, which must be the same for every W x R. With `apart` each replica has a copy of the weights, as on
// several GPUs: `apart out_of_reach` if these do not reach each other's memory, `apart mixed` on CPUs and GPUs together.

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>

#include "../../examples/digits.h"
#include "lockstep/lockstep.h"
#include "lockstep/nn/weights_apart.h"
#include "tests/support/replicas.h"

namespace ls = lockstep;
namespace nn = torch::nn;

namespace {

constexpr int kBatch = 52;

struct Flags {
  bool batch_norm, clip, sparse, accumulate, scaler, several_backwards;
  ls::Implementation implementation;
};

struct Net : nn::Module {
  explicit Net(const Flags& flags) {
    if (flags.sparse) rows = register_module("rows", nn::Embedding(nn::EmbeddingOptions(10, 8).sparse(true)));
    if (flags.batch_norm) normalize = register_module("normalize", ls::nn::SyncBatchNorm2d(16));
    register_module("see", see);
    register_module("decide", decide);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor seen = see->forward(images);
    if (normalize) seen = normalize->forward(seen);
    torch::Tensor out = decide->forward(seen.relu());
    if (rows) {
      const auto brightest = images.flatten(1).argmax(1).remainder(10);
      out = out + rows->forward(brightest).sum(1, /*keepdim=*/true);
    }
    return out;
  }
  nn::Embedding rows{nullptr};
  ls::nn::SyncBatchNorm2d normalize{nullptr};
  nn::Conv2d see{nn::Conv2dOptions(1, 16, 3).padding(1)};
  nn::Sequential decide{nn::MaxPool2d(2),           nn::Flatten(), nn::Dropout(0.5),
                        nn::Linear(16 * 4 * 4, 64), nn::ReLU(),    nn::Linear(64, 10)};
};

torch::Tensor losses_of(const torch::Tensor& guess, const torch::Tensor& labels) {
  return nn::functional::cross_entropy(guess, labels,
                                       nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
}

template <class Optimizer>
void train(ls::Strategy& strategy, ls::MirroredModule<Net>& model, Optimizer& optimizer, const Digits& digits,
           const Flags& flags) {
  ls::GradScaler scaler(strategy, {.initial_scale = 64});
  if (flags.clip) optimizer.set_clip_global_norm(0.5);
  if (flags.accumulate) optimizer.set_accumulate(2);
  auto step = [&](const Digits& mine) {
    const auto losses = losses_of(model->forward(mine.images), mine.labels);
    const auto loss = flags.accumulate ? ls::average_loss(losses, 2 * kBatch) : ls::average_loss(losses);
    if (flags.several_backwards) {
      optimizer.backward(loss * 0.5);
      optimizer.backward(ls::average_loss(losses_of(model->forward(mine.images), mine.labels)) * 0.5);
      optimizer.reduce_gradients();
      optimizer.step();
    } else if (flags.scaler) {
      optimizer.minimize(loss, scaler);
    } else {
      optimizer.minimize(loss);
    }
    return losses.sum();
  };
  auto batches = strategy.distribute(ls::data::from_tensor_slices(digits).shuffle(digits.count()).batch(kBatch));
  for (int epoch = 0; epoch < 3; ++epoch) {
    double loss = 0;
    for (const auto& batch : batches)
      loss += strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, batch)).template item<double>();
    if (strategy.is_chief()) std::printf("loss %a\n", loss);
  }
}

int run(const Flags& flags, int replicas) {
  ls::MultiWorkerMirroredStrategy strategy({.devices = ls::test_devices(replicas),
                                            .communication = {.implementation = flags.implementation},
                                            .intra_op_threads = 1,
                                            .seed = 7,
                                            .deterministic = true});
  Digits digits = load_digits();
  digits = digits.pick(torch::arange(5 * kBatch + 17));  // the last batch is short
  auto model = strategy.make<Net>(flags);
  const bool is_by_nccl = strategy.describe().find("by NCCL") != std::string::npos;
  std::printf("gradients %s\n", is_by_nccl ? "by NCCL" : "through the host");
  std::printf("device %s\n", model.parameters()[0].device().str().c_str());
  if (flags.sparse) {
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.05));
    train(strategy, model, optimizer, digits, flags);
    std::printf("weights %016llx\n", static_cast<unsigned long long>(ls::combine(optimizer.digests())));
  } else {
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(2e-3));
    train(strategy, model, optimizer, digits, flags);
    std::printf("weights %016llx\n", static_cast<unsigned long long>(ls::combine(optimizer.digests())));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ls::use_nccl_on_one_gpu();
  const std::set<std::string> given(argv + 1, argv + argc);
  const auto has = [&](const char* flag) { return given.contains(flag); };
  ls::keep_weights_apart({.weights = has("apart"), .in_reach = !has("out_of_reach"), .mixed = has("mixed")});
  try {
    return run({.batch_norm = has("batch_norm"),
                .clip = has("clip"),
                .sparse = has("sparse"),
                .accumulate = has("accumulate"),
                .scaler = has("scaler"),
                .several_backwards = has("several_backwards"),
                .implementation = has("ring")   ? ls::Implementation::Ring
                                  : has("nccl") ? ls::Implementation::Nccl
                                                : ls::Implementation::Auto},
               argc > 1 ? std::atoi(argv[1]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
