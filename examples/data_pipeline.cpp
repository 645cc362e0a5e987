// An input pipeline from rows in memory to batches: shuffled, augmented on two threads, and resumed from a saved
// position.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace data = lockstep::data;

struct Digits {
  torch::Tensor image, label;
};

data::Dataset<Digits> make_pipeline(const Digits& all) {
  return data::from_tensor_slices(all)  // one element per row
      .shuffle(10'000)                  // a new order in every pass
      .map_with_random(
          [](Digits d, data::RowRandom& random) {
            d.image = d.image / 255;
            if (random.chance(0.5)) d.image = d.image.flip(-1);
            return d;
          },
          {.parallel_calls = 2})
      .batch(64)
      .prefetch(2);
}

int main() {
  torch::manual_seed(1);
  const Digits all{torch::randint(0, 256, {1000, 8, 8}).to(torch::kFloat), torch::randint(0, 10, {1000})};

  const auto batches = make_pipeline(all);
  std::cout << batches.to_string() << "batches: " << to_string(batches.cardinality()) << "\n";

  std::int64_t rows = 0;
  for (const Digits& batch : batches) rows += batch.image.size(0);
  std::cout << "one pass has " << rows << " rows\n";

  auto reader = batches.iterator();
  for (int i = 0; i < 5; ++i) reader.next();
  const std::string saved = reader.state().serialize();  // a few numbers and the pipeline's description

  auto resumed = make_pipeline(all).iterator();
  resumed.load_state(data::IteratorState::parse(saved));
  const bool same = torch::equal(resumed.next()->image, reader.next()->image);
  std::cout << "resumed after 5 batches, " << (same ? "the same" : "DIFFERENT") << " rows\n";

  const auto meter = std::make_shared<data::StageMeter>();
  auto measured = batches.iterator({.meter = meter});
  while (measured.next()) {
  }
  std::cout << to_string(meter->report());
  return rows == 1000 && same ? 0 : 1;
}
