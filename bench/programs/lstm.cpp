// A language model of words: two layers of LSTM over 35 words of a vocabulary of 10,000.

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWords = 10'000, kLength = 35, kWidth = 200;

struct LstmNetImpl : nn::Module {
  LstmNetImpl()
      : embedding(kWords, kWidth),
        lstm(nn::LSTMOptions(kWidth, kWidth).num_layers(2).dropout(0.2).batch_first(true)),
        decoder(kWidth, kWords) {
    register_module("embedding", embedding);
    register_module("lstm", lstm);
    register_module("decoder", decoder);
  }
  torch::Tensor forward(const torch::Tensor& words) {
    return decoder(torch::dropout(std::get<0>(lstm->forward(embedding(words))), 0.2, is_training()));
  }

  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::Linear decoder;
};
TORCH_MODULE(LstmNet);

struct LanguageModel {
  using Net = LstmNet;
  using Optimizer = torch::optim::SGD;
  static auto optimizer_options() { return torch::optim::SGDOptions(0.1); }
  static Rows rows() {
    const auto text = torch::randint(kWords, {2'000, kLength + 1});
    return {text.narrow(1, 0, kLength), text.narrow(1, 1, kLength)};
  }
  static auto transformed(Rows rows) { return rows; }
  /// The mean over the words of each row.
  static torch::Tensor losses(LstmNetImpl& net, const torch::data::Example<>& batch) {
    const auto scores = net.forward(batch.data).flatten(0, 1);
    const auto losses = torch::cross_entropy_loss(scores, batch.target.flatten(), {}, torch::Reduction::None);
    return losses.view({-1, kLength}).mean(1);
  }
};

}  // namespace

Program lstm() { return one_network<LanguageModel>(32); }

}  // namespace lockstep::bench
