#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/nn/loss.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/train.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/small_net.h"

// Programs as people write them: with `fit` they end with the weights and the losses of the loop by hand.
namespace lockstep {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

constexpr int kEpochs = 3;
constexpr std::int64_t kRows = 37, kBatch = 8;  // uneven parts, and a short last batch

/// Numbers that are the same for every call.
at::Tensor waves(at::IntArrayRef shape) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), at::kFloat).mul(0.37)).view(shape);
}

at::Tensor classes_of(const at::Tensor& rows, int count) {
  return rows.flatten(1).sum(1).mul(5).to(at::kLong).remainder(count);
}

/// A network with its loss and optimizer, for the default training step.
template <class Net>
struct Supervised {
  explicit Supervised(Strategy& strategy)
      : net(strategy.make<Net>()),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01))),
        model(net, optimizer, {.loss = train::losses::cross_entropy()}) {}

  at::Tensor step(const Batch& mine) {
    const at::Tensor losses = loss_per_row(net->forward(mine.rows), mine.labels);
    optimizer.minimize(average_loss(losses));
    return losses.detach();
  }
  void begin_epoch() { net.train(); }
  Tensors state() const {
    Tensors all = copies_of(net.parameters());
    for (const auto& buffer : net.named_buffers()) all.push_back(buffer.value());
    return all;
  }

  MirroredModule<Net> net;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  train::Model model;
};

struct ConvNet : nn::Module {
  ConvNet() {
    register_module("conv", conv);
    register_module("channels", channels);
    register_module("decide", decide);
  }
  at::Tensor forward(const at::Tensor& x) { return decide(channels(conv(x).relu()).flatten(1)); }
  nn::Conv2d conv{nn::Conv2dOptions(1, 6, 3)};
  nn::Dropout2d channels{0.2};
  nn::Linear decide{6 * 6 * 6, 4};
};

struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl() {
    register_module("one", one);
    register_module("norm_one", norm_one);
    register_module("two", two);
    register_module("norm_two", norm_two);
  }
  at::Tensor forward(const at::Tensor& x) { return (x + norm_two(two(norm_one(one(x)).relu()))).relu(); }
  nn::Conv2d one{nn::Conv2dOptions(5, 5, 3).padding(1).bias(false)};
  nn::BatchNorm2d norm_one{5};
  nn::Conv2d two{nn::Conv2dOptions(5, 5, 3).padding(1).bias(false)};
  nn::BatchNorm2d norm_two{5};
};
TORCH_MODULE(ResidualBlock);

struct ResidualNet : nn::Module {
  ResidualNet() {
    register_module("stem", stem);
    register_module("first", first);
    register_module("second", second);
    register_module("decide", decide);
  }
  at::Tensor forward(const at::Tensor& x) { return decide(second(first(stem(x))).mean({2, 3})); }
  nn::Conv2d stem{nn::Conv2dOptions(1, 5, 3).padding(1)};
  ResidualBlock first, second;
  nn::Linear decide{5, 4};
};

/// Scores of the next word after each word, [rows, words, places], and the state after the last one.
struct Reading {
  at::Tensor scores;
  std::tuple<at::Tensor, at::Tensor> state;
};

struct LanguageModel : nn::Module {
  LanguageModel() {
    register_module("embed", embed);
    register_module("lstm", lstm);
    register_module("decide", decide);
  }
  Reading forward(const at::Tensor& words) {
    const auto [read, state] = lstm(embed(words));
    return {decide(read).transpose(1, 2), state};
  }
  nn::Embedding embed{11, 8};
  nn::LSTM lstm{nn::LSTMOptions(8, 12).num_layers(2).dropout(0.3).batch_first(true)};
  nn::Linear decide{12, 11};
};

/// A network with more than one output.
struct Reader {
  explicit Reader(Strategy& strategy)
      : net(strategy.make<LanguageModel>()),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01))),
        model(net, optimizer, {.loss = [](const Reading& output, const at::Tensor& words) {
                return loss_per_row(output.scores, words);
              }}) {}

  at::Tensor step(const Batch& mine) {
    const at::Tensor losses = loss_per_row(net->forward(mine.rows).scores, mine.labels).mean(1);
    optimizer.minimize(average_loss(losses));
    return losses.detach();
  }
  void begin_epoch() { net.train(); }
  Tensors state() const { return copies_of(net.parameters()); }

  MirroredModule<LanguageModel> net;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  train::Model model;
};

struct TwoLayers : nn::Module {
  TwoLayers(int inputs, int outputs) : first(inputs, 16), second(16, outputs) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  nn::Linear first, second;
};

/// Two networks, each with its optimizer, and a training step of its own.
struct Gan {
  explicit Gan(Strategy& strategy)
      : net(strategy.make<TwoLayers>(4, 9)),
        judge(strategy.make<TwoLayers>(9, 1)),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01))),
        judge_optimizer(strategy.make_optimizer<torch::optim::SGD>(judge, torch::optim::SGDOptions(0.05))),
        model(net, optimizer, {}) {
    model.set_train_step([this](const Batch& mine) { return train::StepLogs{{"loss", step(mine)}}; });
  }
  at::Tensor step(const Batch& mine) {
    const at::Tensor fake = net->forward(torch::randn({mine.rows.size(0), 4}, mine.rows.options()));
    const auto verdict = [&](const at::Tensor& points, double truth) {
      const at::Tensor said = judge->forward(points).squeeze(1);
      return at::binary_cross_entropy_with_logits(said, at::full_like(said, truth), {}, {}, at::Reduction::None);
    };
    judge_optimizer.minimize(average_loss(verdict(mine.rows, 1) + verdict(fake.detach(), 0)));
    const at::Tensor losses = verdict(fake, 1);
    optimizer.minimize(average_loss(losses));
    judge_optimizer.zero_grad();  // the generator's backward went through the judge
    return losses.detach();
  }
  void begin_epoch() {}
  Tensors state() const {
    Tensors all = copies_of(net.parameters());
    for (const at::Tensor& each : copies_of(judge.parameters())) all.push_back(each);
    return all;
  }

  MirroredModule<TwoLayers> net, judge;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  MirroredOptimizer<torch::optim::SGD> judge_optimizer;
  train::Model model;
};

struct Painting {
  at::Tensor image, mean, log_variance;
};

struct Autoencoder : nn::Module {
  Autoencoder() : encode(9, 6), decode(3, 9) {
    register_module("encode", encode);
    register_module("decode", decode);
  }
  Painting forward(const at::Tensor& x) {
    const Tensors parts = encode(x).chunk(2, 1);
    const at::Tensor z = parts[0] + at::randn_like(parts[1]) * (parts[1] * 0.5).exp();
    return {decode(z), parts[0], parts[1]};
  }
  nn::Linear encode, decode;
};

/// One value for each row.
at::Tensor autoencoder_losses(const Painting& output, const Batch& mine) {
  const at::Tensor divergence =
      (output.mean.square() + output.log_variance.exp() - output.log_variance - 1).sum(1) * 0.5;
  return at::mse_loss(output.image, mine.rows, at::Reduction::None).mean(1) + 0.1 * divergence;
}

struct VariationalAutoencoder {
  explicit VariationalAutoencoder(Strategy& strategy)
      : net(strategy.make<Autoencoder>()),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01))),
        model(net, optimizer, {.loss = autoencoder_losses}) {}
  at::Tensor step(const Batch& mine) {
    const at::Tensor losses = autoencoder_losses(net->forward(mine.rows), mine);
    optimizer.minimize(average_loss(losses));
    return losses.detach();
  }
  void begin_epoch() {}
  Tensors state() const { return copies_of(net.parameters()); }

  MirroredModule<Autoencoder> net;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  train::Model model;
};

struct Outcome {
  Tensors state;
  std::vector<double> losses;  ///< of each epoch
};

/// The numbers of a program are those of its seed, whichever way it trains.
template <class Program>
Outcome outcome(int replicas, const Batch& rows, bool with_fit) {
  MirroredStrategy strategy({.devices = test_devices(replicas), .intra_op_threads = 1, .seed = 11});
  Program program(strategy);
  const auto dataset = data::from_tensor_slices(rows).shuffle(kRows).batch(kBatch);
  if (with_fit) {
    const auto history = program.model.fit(dataset, {.epochs = kEpochs, .verbose = train::Verbose::Silent});
    return {program.state(), history.of("loss")};
  }
  Outcome result;
  const auto batches = strategy.distribute(dataset);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    program.begin_epoch();
    double sum = 0;
    for (const auto& batch : batches) {
      const auto losses = strategy.run([&](const Batch& mine) { return program.step(mine).sum(at::kDouble); }, batch);
      const at::Tensor total = strategy.reduce(ReduceOp::Sum, losses);
      sum += total.item<double>();
    }
    result.losses.push_back(sum / kRows);
  }
  result.state = program.state();
  return result;
}

template <class Program>
void expect_the_loop_by_hand(const Batch& rows) {
  for (const int replicas : {1, 2, 3}) {
    const Outcome by_hand = outcome<Program>(replicas, rows, /*with_fit=*/false);
    const Outcome by_fit = outcome<Program>(replicas, rows, /*with_fit=*/true);
    EXPECT_EQ(first_difference(by_fit.state, by_hand.state), "") << replicas;
    ASSERT_EQ(by_fit.losses.size(), by_hand.losses.size());
    for (std::size_t epoch = 0; epoch < by_hand.losses.size(); ++epoch)
      EXPECT_NEAR(by_fit.losses[epoch], by_hand.losses[epoch], 1e-12) << replicas;
    EXPECT_NE(by_hand.losses[0], by_hand.losses[1]) << "nothing was learnt";
  }
}

Batch images() {
  const at::Tensor rows = waves({kRows, 1, 8, 8});
  return {rows, classes_of(rows, 4)};
}

TEST(FitHasTheBitsOfTheLoopByHand, ConvNet) { expect_the_loop_by_hand<Supervised<ConvNet>>(images()); }
TEST(FitHasTheBitsOfTheLoopByHand, ResNet) { expect_the_loop_by_hand<Supervised<ResidualNet>>(images()); }
TEST(FitHasTheBitsOfTheLoopByHand, LstmLanguageModel) {
  const at::Tensor words = waves({kRows, 8}).mul(37).to(at::kLong).remainder(11);
  expect_the_loop_by_hand<Reader>({words.slice(1, 0, 7), words.slice(1, 1, 8)});
}
TEST(FitHasTheBitsOfTheLoopByHand, Gan) { expect_the_loop_by_hand<Gan>({waves({kRows, 9}), torch::zeros({kRows})}); }
TEST(FitHasTheBitsOfTheLoopByHand, VariationalAutoencoder) {
  expect_the_loop_by_hand<VariationalAutoencoder>({waves({kRows, 9}), torch::zeros({kRows})});
}

}  // namespace
}  // namespace lockstep
