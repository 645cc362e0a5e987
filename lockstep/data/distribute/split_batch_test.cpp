#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/rows_of_replicas.h"

// strategy.split: cuts a batch of the program into one part per replica.
namespace lockstep::data {
namespace {

TEST(Split, CutsABatchAsDistributeWould) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  auto& strategy = strategy_of(4);
  const Pair batch{at::arange(20).view({10, 2}), at::arange(10)};
  const auto parts = strategy.split(batch);
  const auto distributed =
      strategy.distribute(from_tensor_slices(batch).batch(10)).iterator().get_next().map(&Pair::second);
  EXPECT_EQ(rows(parts.map(&Pair::second)), rows(distributed));
  EXPECT_EQ(rows(parts[3].first), (Rows{16, 17, 18, 19}));
  EXPECT_EQ(parts[1].first.data_ptr(), batch.first[3].data_ptr()) << "a view";
  EXPECT_EQ(global_rows(parts), 10);
  EXPECT_EQ(rows(strategy.split(at::arange(2))), (std::vector<Rows>{{0}, {1}, {}, {}}));
  EXPECT_EQ(strategy.split(at::zeros({2, 3}))[3].sizes(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(global_rows(strategy.split(at::zeros({0, 3}))), 0);
  const auto named = strategy.split(std::map<std::string, Strings>{{"file", {"a", "b", "c", "d"}}});
  EXPECT_EQ(named[2].at("file"), Strings({"c"}));
}

TEST(Split, PutsEachPartOnItsReplicasDevice) {
  const auto parts = strategy_of(3).split(at::arange(8, at::kCPU));
  for (const at::Tensor& part : parts) EXPECT_EQ(part.device(), test_device());
  EXPECT_EQ(rows(parts), (std::vector<Rows>{{0, 1, 2}, {3, 4, 5}, {6, 7}}));
  EXPECT_EQ(strategy_of(3).split(at::zeros({8, 2}, at::kMeta))[2].sizes(), at::IntArrayRef({2, 2}));
}

TEST(Split, GivesRepeatedRowsMemoryOfTheirOwn) {
  const auto parts = strategy_of(2).split(at::zeros({1}).expand({4}));
  parts[0].add_(1);
  EXPECT_EQ(rows(parts), (std::vector<Rows>{{1, 1}, {0, 0}}));
}

/// As torch::data::Example: a class with constructors.
struct LoadedBatch {
  LoadedBatch() = default;
  LoadedBatch(at::Tensor x, at::Tensor y) : data(std::move(x)), target(std::move(y)) {}
  at::Tensor data, target;
};

TEST(Split, TakesTheBatchesOfADataLoader) {
  auto& strategy = strategy_of(2);
  const PerReplica<LoadedBatch> parts = strategy.split(LoadedBatch(at::zeros({5, 2}), at::arange(5)));
  const auto sums = strategy.run([](const LoadedBatch& mine) { return mine.target.sum(); }, parts);
  EXPECT_EQ(sums[1].item<std::int64_t>(), 7);
  EXPECT_EQ(global_rows(parts), 5);
}

TEST(Split, RefusesWhatHasNoRowsOrRowsThatDoNotBelongTogether) {
  auto& strategy = strategy_of(2);
  const auto refused = [&](const auto& batch) {
    try {
      strategy.split(batch);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.text().where, "split");
      EXPECT_EQ(error.text().help.find("batch()"), std::string::npos) << "there is no dataset";
      EXPECT_EQ(error.text().help.find("map"), std::string::npos) << error.text().help;
      EXPECT_FALSE(error.text().help.empty());
      return error.text().what;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused(at::zeros({})), "every component needs a first dimension to take rows from");
  EXPECT_EQ(refused(at::Tensor()), "an undefined tensor has no rows");
  EXPECT_EQ(refused(std::pair{at::zeros({4}), at::zeros({3})}), "all components must have the same batch size");
  EXPECT_EQ(refused(std::vector<at::Tensor>()), "an element without components has no rows");
  EXPECT_THROW(strategy.run([&] { strategy.split(at::zeros({4})); }), Error) << "inside a replica";
}

TEST(GlobalRows, AddsUpUnevenParts) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  auto& strategy = strategy_of(2);
  std::vector<std::int64_t> sizes;
  for (const auto& batch : strategy.distribute(range(7).batch(4))) sizes.push_back(global_rows(batch));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 3}));
  const Pair uneven{at::zeros({3}), at::zeros({2})};
  EXPECT_THROW(global_rows(PerReplica<Pair>({uneven, uneven})), InvalidArgument);
  EXPECT_THROW(global_rows(PerReplica<double>({1.0, 2.0})), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
