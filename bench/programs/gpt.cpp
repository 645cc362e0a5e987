// A small GPT over characters: four layers of 128, texts of 64 characters.

#include <ATen/ops/scaled_dot_product_attention.h>

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kCharacters = 96, kLength = 64, kWidth = 128, kHeads = 4, kLayers = 4;

struct LayerImpl : nn::Module {
  LayerImpl()
      : norm1(nn::LayerNormOptions({kWidth})),
        norm2(nn::LayerNormOptions({kWidth})),
        queries(kWidth, 3 * kWidth),
        mixed(kWidth, kWidth),
        wide(kWidth, 4 * kWidth),
        narrow(4 * kWidth, kWidth) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("queries", queries);
    register_module("mixed", mixed);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto rows = x.size(0), length = x.size(1);
    const auto parts = queries(norm1(x)).view({rows, length, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + mixed(seen.transpose(1, 2).reshape({rows, length, kWidth}));
    return x + narrow(torch::gelu(wide(norm2(x))));
  }

  nn::LayerNorm norm1, norm2;
  nn::Linear queries, mixed, wide, narrow;
};
TORCH_MODULE(Layer);

struct GptNetImpl : nn::Module {
  GptNetImpl()
      : characters(kCharacters, kWidth),
        places(kLength, kWidth),
        norm(nn::LayerNormOptions({kWidth})),
        decoder(kWidth, kCharacters) {
    register_module("characters", characters);
    register_module("places", places);
    for (int k = 0; k < kLayers; ++k) layers->push_back(Layer());
    register_module("layers", layers);
    register_module("norm", norm);
    register_module("decoder", decoder);
  }
  torch::Tensor forward(const torch::Tensor& text) {
    return decoder(norm(layers->forward(characters(text) + places->weight)));
  }

  nn::Embedding characters, places;
  nn::Sequential layers;
  nn::LayerNorm norm;
  nn::Linear decoder;
};
TORCH_MODULE(GptNet);

struct Gpt {
  using Net = GptNet;
  using Optimizer = torch::optim::AdamW;
  static auto optimizer_options() { return torch::optim::AdamWOptions(3e-4); }
  static Rows rows() {
    const auto text = torch::randint(kCharacters, {2'000, kLength + 1});
    return {text.narrow(1, 0, kLength), text.narrow(1, 1, kLength)};
  }
  static auto transformed(Rows rows) { return rows; }
  static torch::Tensor losses(GptNetImpl& net, const torch::data::Example<>& batch) {
    const auto scores = net.forward(batch.data).flatten(0, 1);
    const auto losses = torch::cross_entropy_loss(scores, batch.target.flatten(), {}, torch::Reduction::None);
    return losses.view({-1, kLength}).mean(1);
  }
};

}  // namespace

Program gpt() { return one_network<Gpt>(32); }

}  // namespace lockstep::bench
