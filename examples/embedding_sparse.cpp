// A large table of word vectors, of which each step uses only a few rows. With sparse(true) a gradient contains only
// those rows. The rows of all replicas are concatenated, and rows that several replicas use are summed. `--device gpu`
// puts the replicas on a GPU.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

#include "devices.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

/// Which rows change, and by how much, when replica 0 uses words 1 and 3, and replica 1 uses words 3 and 4.
bool show_one_step(ls::Strategy& strategy) {
  auto table = strategy.make([] { return nn::Embedding(nn::EmbeddingOptions(6, 2).sparse(true)); });
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(table, torch::optim::SGDOptions(1.0));
  const Tensor before = table->weight.detach().clone();
  strategy.run([&] {
    const auto& replica = ls::get_replica_context();
    const auto words = replica.replica_id_in_sync_group() == 0 ? torch::tensor({1, 3}) : torch::tensor({3, 4});
    optimizer.minimize(table->forward(words.to(replica.device())).sum());  // the gradient of each element used is 1
  });
  const Tensor change = (before - table->weight).select(1, 0).round().cpu();
  std::cout << "replica 0 used words 1 and 3, replica 1 words 3 and 4. Gradients by word:\n  ";
  for (int word = 0; word < 6; ++word) std::cout << " " << change[word].item<int>();
  std::cout << "\n\n";
  return change.equal(torch::tensor({0.f, 1.f, 0.f, 2.f, 1.f, 0.f}));
}

constexpr int kWords = 20'000, kLength = 8;

/// Reviews: the first 50 words are praise, the next 50 are blame, all others are neutral.
struct Reviews {
  Tensor words;   // [n, kLength]
  Tensor praise;  // [n], 0 or 1

  Reviews to(torch::Device device) const { return {words.to(device), praise.to(device)}; }
};

Reviews write_reviews(std::int64_t count) {
  const auto praise = torch::randint(0, 2, {count}, torch::kLong);
  auto words = torch::randint(100, kWords, {count, kLength}, torch::kLong);
  const auto telling = torch::randint(0, 50, {count, 2}, torch::kLong) + 50 * (1 - praise).unsqueeze(1);
  words.slice(1, 0, 2).copy_(telling);
  return {words, praise.to(torch::kFloat)};
}

struct Reader : nn::Module {
  explicit Reader(bool sparse) : table(nn::EmbeddingOptions(kWords, 16).sparse(sparse)), judge(16, 1) {
    register_module("table", table);
    register_module("judge", judge);
  }
  Tensor forward(const Tensor& words) { return judge(table(words).mean(1)).squeeze(1); }

  nn::Embedding table;
  nn::Linear judge;
};

/// Trains and returns the table and the share of correct answers about new reviews.
std::pair<Tensor, double> train(ls::Strategy& strategy, bool sparse, int steps) {
  torch::manual_seed(6);
  const auto device = strategy.replica_context(0).device();
  auto reader = strategy.make<Reader>(sparse);
  {
    // Both trainings start from the same weights.
    const torch::NoGradGuard no_grad;
    for (auto& weight : reader.parameters()) weight.normal_(0, 0.3);
  }
  auto optimizer = strategy.make_optimizer<torch::optim::Adagrad>(reader, torch::optim::AdagradOptions(0.3));
  auto step = [&](const Reviews& mine) {
    const auto guess = reader->forward(mine.words);
    const auto losses = nn::functional::binary_cross_entropy_with_logits(
        guess, mine.praise, nn::functional::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kNone));
    optimizer.minimize(ls::average_loss(losses));
  };
  for (int k = 0; k < steps; ++k) {
    strategy.run(step,
                 strategy.values_from_function([&](const ls::ValueContext&) { return write_reviews(32).to(device); }));
  }
  const Reviews unseen = write_reviews(1000).to(device);
  const torch::NoGradGuard no_grad;
  const auto right = (reader->forward(unseen.words) > 0) == (unseen.praise > 0.5);
  return {reader->table->weight.detach(), right.to(torch::kDouble).mean().item<double>()};
}

int main(int argc, char** argv) {
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  const bool added_up = show_one_step(strategy);

  const auto [dense_table, dense_accuracy] = train(strategy, /*sparse=*/false, 60);
  const auto [sparse_table, accuracy] = train(strategy, /*sparse=*/true, 60);
  const double difference = (dense_table - sparse_table).abs().max().item<double>();
  std::cout << "60 steps of 2 x 32 reviews, " << kWords << " words:\n"
            << "  correct about new reviews:        " << 100 * accuracy << "%\n"
            << "  with dense gradients:             " << 100 * dense_accuracy << "%\n"
            << "  rows in a step's gradient:        at most " << 2 * 32 * kLength << " of " << kWords << "\n"
            << "  largest difference of the tables: " << difference << "\n";
  return added_up && accuracy > 0.9 && difference < 1e-3 ? 0 : 1;
}
