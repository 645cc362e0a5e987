// Trains a small transformer to continue a text letter by letter, and prints what it writes: `char_transformer [epochs]
// [--device gpu]`.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "devices.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

constexpr std::int64_t kLength = 48, kWidth = 96, kHeads = 4, kBlocks = 2;
constexpr std::int64_t kStepsPerEpoch = 66;  // half a pass over the text

/// A text as numbers of letters.
struct Text {
  explicit Text(const std::string& path) {
    std::ifstream file(path);
    const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    letters = all;
    std::sort(letters.begin(), letters.end());
    letters.erase(std::unique(letters.begin(), letters.end()), letters.end());
    std::vector<std::int64_t> found;
    for (const char letter : all) found.push_back(static_cast<std::int64_t>(letters.find(letter)));
    numbers = torch::tensor(found);
  }

  std::string letters;  ///< letters that occur
  Tensor numbers;
};

/// Pieces of a text, each with the same piece one letter later.
struct Pieces {
  Tensor letters, next;  ///< [n, kLength]
};

Pieces pieces_of(const Text& text) {
  const Tensor all = text.numbers.unfold(0, kLength + 1, 1);
  return {all.slice(1, 0, kLength).contiguous(), all.slice(1, 1).contiguous()};
}

/// Attention to the letters before, and two linear layers.
struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("first_norm", first_norm);
    register_module("attention", attention);
    register_module("join", join);
    register_module("second_norm", second_norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {
    const auto parts = attention(first_norm(x)).view({x.size(0), x.size(1), 3, kHeads, -1}).permute({2, 0, 3, 1, 4});
    const Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const Tensor y = x + join(seen.transpose(1, 2).flatten(2));
    return y + narrow(wide(second_norm(y)).relu());
  }

  nn::LayerNorm first_norm{nn::LayerNormOptions({kWidth})}, second_norm{nn::LayerNormOptions({kWidth})};
  nn::Linear attention{kWidth, 3 * kWidth}, join{kWidth, kWidth}, wide{kWidth, 4 * kWidth}, narrow{4 * kWidth, kWidth};
};
TORCH_MODULE(Block);

struct TransformerImpl : nn::Module {
  explicit TransformerImpl(std::int64_t letters)
      : letter(letters, kWidth), place(kLength, kWidth), last(kWidth, letters) {
    register_module("letter", letter);
    register_module("place", place);
    for (int k = 0; k < kBlocks; ++k) blocks->push_back(Block());
    register_module("blocks", blocks);
    register_module("last", last);
  }
  /// [rows, letters, kLength]: a score for each letter to come next, at each place.
  Tensor forward(const Tensor& text) {
    const Tensor places = torch::arange(text.size(1), text.options());
    return last(blocks->forward(letter(text) + place(places))).transpose(1, 2);
  }

  nn::Embedding letter, place;
  nn::Sequential blocks;
  nn::Linear last;
};
TORCH_MODULE(Transformer);

/// Continues a beginning, one letter after the other.
std::string write(TransformerImpl& net, const Text& text, std::string so_far, std::size_t length) {
  const torch::NoGradGuard no_grad;
  const torch::Device device = net.parameters()[0].device();
  while (so_far.size() < length) {
    std::vector<std::int64_t> last;
    for (std::size_t k = so_far.size() - std::min<std::size_t>(so_far.size(), kLength); k < so_far.size(); ++k)
      last.push_back(static_cast<std::int64_t>(text.letters.find(so_far[k])));
    const Tensor scores = net.forward(torch::tensor(last, device).unsqueeze(0)).select(2, -1).squeeze(0);
    constexpr double kTemperature = 0.7;
    const auto next = (scores / kTemperature).softmax(0).multinomial(1).item<std::int64_t>();
    so_far += text.letters[static_cast<std::size_t>(next)];
  }
  return so_far;
}

int main(int argc, char** argv) {
  torch::manual_seed(3);
  const int epochs = argc > 1 && argv[1][0] != '-' ? std::atoi(argv[1]) : 8;
  const Text text(TEXT_FILE);
  const Pieces pieces = pieces_of(text);
  const auto batches = ls::data::from_tensor_slices(pieces).shuffle(pieces.letters.size(0)).batch(32);

  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make<Transformer>(static_cast<std::int64_t>(text.letters.size()));
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(net, torch::optim::AdamWOptions(3e-3));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(),
                          .metrics = {ls::train::metrics::accuracy(), ls::train::metrics::perplexity()}});
  const auto history = model.fit(
      batches,
      {.epochs = epochs,
       .steps_per_epoch = kStepsPerEpoch,
       .schedule = ls::CosineSchedule{.base = 3e-3, .warmup_steps = 20, .total_steps = epochs * kStepsPerEpoch}});
  std::printf("\n%s\n", write(*net.replica(0), text, "The Walrus and ", 400).c_str());
  return history.last("perplexity") < 25 ? 0 : 1;
}
