#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <torch/data/samplers/random.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <memory>
#include <vector>

#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// With a single replica, a program equals the plain LibTorch program: the same random numbers in the same order, and so
// the same losses and weights, bit for bit. Ports are checked this way.
namespace lockstep {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

constexpr int kSteps = 20;

/// A program's steps in plain LibTorch.
struct Plain {
  template <class Opt>
  struct Optimizer {
    Opt inner;
    void minimize(const at::Tensor& loss) {
      inner.zero_grad();
      loss.backward();
      inner.step();
    }
    void zero_grad() { inner.zero_grad(); }
  };

  template <class F>
  auto make(const F& build) {
    return module_here(build());
  }
  template <class Opt, class Model, class Options>
  Optimizer<Opt> make_optimizer(const Model& model, const Options& options) {
    return {Opt(model->parameters(), options)};
  }
  template <class F>
  at::Tensor run(const F& step) {
    return step();
  }
};

/// The same in Lockstep.
struct OneReplica {
  template <class F>
  auto make(const F& build) {
    return strategy.make(build);
  }
  template <class Opt, class Model, class Options>
  auto make_optimizer(const Model& model, const Options& options) {
    return strategy.make_optimizer<Opt>(model, options);
  }
  template <class F>
  at::Tensor run(const F& step) {
    return strategy.run(step);
  }

  MirroredStrategy strategy{on_devices(1)};
};

/// `program(way)` trains and returns its losses and weights.
template <class Way, class F>
Tensors outcome(std::uint64_t seed, const F& program) {
  torch::manual_seed(seed);
  Way way;
  Tensors all = program(way);
  all.push_back(torch::randn({3}));  // what the program would draw next
  return all;
}

template <class F>
void expect_the_plain_program(const F& program) {
  const LoggedLines warnings(Severity::Warning);
  const Tensors plain = outcome<Plain>(77, program);
  EXPECT_NE(first_difference(outcome<Plain>(78, program), plain), "") << "blind: the seed changes nothing";
  EXPECT_EQ(first_difference(outcome<OneReplica>(77, program), plain), "");
  EXPECT_EQ(warnings.lines(), std::vector<std::string>());
}

template <class... Models>
Tensors with_weights(Tensors losses, const Models&... models) {
  const auto add = [&](const auto& model) {
    for (const at::Tensor& each : copies_of(model->parameters())) losses.push_back(each);
    for (const at::Tensor& each : copies_of(model->buffers())) losses.push_back(each);
  };
  (add(models), ...);
  return losses;
}

struct ConvNet : nn::Module {
  ConvNet() {
    register_module("conv", conv);
    register_module("channels", channels);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("decide", decide);
  }
  at::Tensor forward(const at::Tensor& x) {
    return decide(drop(at::max_pool2d(channels(norm(conv(x)).relu()), 2).flatten(1)));
  }
  nn::Conv2d conv{nn::Conv2dOptions(1, 6, 3)};
  nn::BatchNorm2d norm{6};
  nn::Dropout2d channels{0.2};
  nn::Dropout drop{0.5};
  nn::Linear decide{6 * 3 * 3, 4};
};

TEST(OneReplica, IsThePlainProgramWithConvolutionsDropoutAndASampler) {
  expect_the_plain_program([](auto& way) {
    auto net = way.make([] { return std::make_shared<ConvNet>(); });
    auto optimizer = way.template make_optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1).momentum(0.9));
    const at::Tensor images = torch::randn({44, 1, 8, 8}), labels = torch::randint(0, 4, {44}, at::kLong);
    torch::data::samplers::RandomSampler sampler(44);
    Tensors losses;
    for (int step = 0; step < kSteps; ++step) {
      auto rows = sampler.next(8);
      if (!rows) {
        sampler.reset();
        rows = sampler.next(8);
      }
      const at::Tensor which = torch::tensor(std::vector<std::int64_t>(rows->begin(), rows->end()), at::kLong);
      losses.push_back(way.run([&] {
        const at::Tensor guess = net->forward(images.index_select(0, which));
        const at::Tensor loss = at::cross_entropy_loss(guess, labels.index_select(0, which));
        optimizer.minimize(loss);
        return loss.detach();
      }));
    }
    return with_weights(losses, net);
  });
}

struct Sequences : nn::Module {
  Sequences() {
    register_module("lstm", lstm);
    register_module("decide", decide);
  }
  at::Tensor forward(const at::Tensor& x) { return decide(std::get<0>(lstm(x)).select(1, -1)); }
  nn::LSTM lstm{nn::LSTMOptions(5, 12).num_layers(2).dropout(0.4).batch_first(true)};
  nn::Linear decide{12, 3};
};

TEST(OneReplica, IsThePlainProgramWithAnLstm) {
  expect_the_plain_program([](auto& way) {
    auto net = way.make([] { return std::make_shared<Sequences>(); });
    auto optimizer = way.template make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
    Tensors losses;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x = torch::randn({6, 7, 5}), y = torch::randint(0, 3, {6}, at::kLong);
      losses.push_back(way.run([&] {
        const at::Tensor loss = at::cross_entropy_loss(net->forward(x), y);
        optimizer.minimize(loss);
        return loss.detach();
      }));
    }
    return with_weights(losses, net);
  });
}

struct TwoLayers : nn::Module {
  TwoLayers(int inputs, int outputs) : first(inputs, 16), second(16, outputs) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).tanh()); }
  nn::Linear first, second;
};

TEST(OneReplica, IsThePlainProgramWithAGanAndItsNoise) {
  expect_the_plain_program([](auto& way) {
    auto generator = way.make([] { return std::make_shared<TwoLayers>(4, 2); });
    auto judge = way.make([] { return std::make_shared<TwoLayers>(2, 1); });
    const auto options = torch::optim::AdamOptions(0.01).betas({0.5, 0.9});
    auto generator_optimizer = way.template make_optimizer<torch::optim::Adam>(generator, options);
    auto judge_optimizer = way.template make_optimizer<torch::optim::Adam>(judge, options);
    Tensors losses;
    for (int step = 0; step < kSteps; ++step) {
      losses.push_back(way.run([&] {
        const at::Tensor real = torch::rand({9, 2}) * 0.5;
        const at::Tensor fake = generator->forward(torch::randn({9, 4}));
        const at::Tensor judged = (judge->forward(real) - 1).square() + judge->forward(fake.detach()).square();
        judge_optimizer.minimize(judged.mean());
        const at::Tensor loss = (judge->forward(fake) - 1).square().mean();
        generator_optimizer.minimize(loss);
        judge_optimizer.zero_grad();  // the generator's backward went through the judge
        return loss.detach();
      }));
    }
    return with_weights(losses, generator, judge);
  });
}

TEST(OneReplica, IsThePlainProgramWithAVariationalAutoencoder) {
  expect_the_plain_program([](auto& way) {
    auto encoder = way.make([] { return std::make_shared<TwoLayers>(10, 6); });
    auto decoder = way.make([] { return std::make_shared<TwoLayers>(3, 10); });
    auto of_encoder = way.template make_optimizer<torch::optim::Adam>(encoder, torch::optim::AdamOptions(0.01));
    auto of_decoder = way.template make_optimizer<torch::optim::SGD>(decoder, torch::optim::SGDOptions(0.05));
    Tensors losses;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x = torch::rand({8, 10});
      losses.push_back(way.run([&] {
        const auto loss_of = [&] {
          const Tensors parts = encoder->forward(x).chunk(2, 1);
          const at::Tensor z = parts[0] + torch::randn_like(parts[1]) * (parts[1] * 0.5).exp();
          const at::Tensor divergence = (parts[0].square() + parts[1].exp() - parts[1] - 1).sum(1).mean() * 0.5;
          return at::mse_loss(decoder->forward(z), x) + divergence;
        };
        of_encoder.minimize(loss_of());
        of_decoder.zero_grad();
        const at::Tensor loss = loss_of();
        of_decoder.minimize(loss);
        of_encoder.zero_grad();
        return loss.detach();
      }));
    }
    return with_weights(losses, encoder, decoder);
  });
}

struct Translator : nn::Module {
  Translator() {
    register_module("embed", embed);
    register_module("encode", encode);
    register_module("decide", decide);
  }
  at::Tensor forward(const at::Tensor& words) { return decide(encode(embed(words)).mean(0)); }
  nn::Embedding embed{20, 16};
  nn::TransformerEncoder encode{
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(24).dropout(0.2), 2)};
  nn::Linear decide{16, 5};
};

TEST(OneReplica, IsThePlainProgramWithATransformer) {
  expect_the_plain_program([](auto& way) {
    auto net = way.make([] { return std::make_shared<Translator>(); });
    auto optimizer = way.template make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
    Tensors losses;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor words = torch::randint(0, 20, {7, 6}, at::kLong), labels = torch::randint(0, 5, {6}, at::kLong);
      losses.push_back(way.run([&] {
        const at::Tensor loss = at::cross_entropy_loss(net->forward(words), labels);
        optimizer.minimize(loss);
        return loss.detach();
      }));
    }
    return with_weights(losses, net);
  });
}

}  // namespace
}  // namespace lockstep
