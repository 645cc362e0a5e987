#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
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

// The arguments that run accepts: the structure and shapes of a distributed dataset.
namespace lockstep::data {
namespace {

TEST(ElementSpec, OfADistributedDatasetIsThatOfOneReplica) {
  const auto x = at::zeros({8, 3});
  const auto batches = strategy_of(2).distribute(from_tensor_slices(x).batch(4, {.drop_remainder = true}));
  EXPECT_EQ(batches.element_spec().per_replica, 2);
  EXPECT_EQ(batches.element_spec().element.components->at(0).shape, (PartialShape{2, 3}));
  EXPECT_EQ(batches.iterator().element_spec(), batches.element_spec());
  EXPECT_EQ(strategy_of(1).distribute(from_tensor_slices(x).batch(4)).element_spec().per_replica, 0);
}

TEST(Signature, OfRunNamesTheLeafThatDiffers) {
  auto& strategy = strategy_of(2);
  const auto batches = strategy.distribute(
      from_tensor_slices(std::pair{at::zeros({8, 3}), at::zeros({8})}).batch(4, {.drop_remainder = true}));
  const auto spec = batches.element_spec();
  using Pair = std::pair<at::Tensor, at::Tensor>;
  const auto size = [](const Pair& mine) { return mine.first.size(0); };
  for (const auto& batch : batches) EXPECT_EQ(strategy.run(spec, size, batch)[1], 2);
  const auto wrong = [&](at::Tensor a, at::Tensor b) {
    try {
      strategy.run(spec, size, PerReplica<Pair>({Pair{a, b}, Pair{a, b}}));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(wrong(at::zeros({2, 4}), at::zeros({2})).find("argument 0[0] has another shape"), std::string::npos);
  EXPECT_NE(wrong(at::zeros({2, 3}), at::zeros({2}, at::kLong)).find("argument 0[1] is of another type"),
            std::string::npos);
  EXPECT_EQ(wrong(at::zeros({2, 3}), at::zeros({2})), "nothing");
}

TEST(Signature, OfMapsOfTensorsIsKnownToo) {
  auto& strategy = strategy_of(2);
  using Named = std::map<std::string, at::Tensor>;
  const auto batches = strategy.distribute(
      from_tensor_slices(Named{{"x", at::zeros({8, 3})}, {"y", at::arange(8)}}).batch(4, {.drop_remainder = true}));
  const auto spec = batches.element_spec();
  ASSERT_TRUE(spec.element.is_known());
  EXPECT_EQ(to_string(spec), "PerReplica x 2 of (float32[2, 3], int64[2])");
  const auto size = [](const Named& mine) { return mine.at("y").size(0); };
  for (const auto& batch : batches) EXPECT_EQ(strategy.run(spec, size, batch)[0], 2);
  const Named wrong{{"x", at::zeros({2, 3})}, {"y", at::zeros({2})}};
  try {
    strategy.run(spec, size, PerReplica<Named>({wrong, wrong}));
    FAIL() << "a float is not an int64";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(error.text().what.find("argument 0['y'] is of another type"), std::string::npos) << error.what();
    EXPECT_EQ(error.text().seen, "got float32[2], wanted int64[2]");
    EXPECT_NE(error.text().help.find("element_spec()"), std::string::npos) << error.what();
  }
  const Named renamed{{"x", at::zeros({2, 3})}, {"z", at::arange(2)}};
  try {
    strategy.run(
        spec, [](const Named&) {}, PerReplica<Named>({renamed, renamed}));
    FAIL() << "another key";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.text().seen, "got keys x, z; wanted keys x, y");
    EXPECT_FALSE(error.text().help.empty());
  }
  EXPECT_THROW(strategy_of(3).run(spec, size, wrong), InvalidArgument) << "a signature of two replicas";
}

TEST(Signature, AcceptsEmptyBatchesOfAFunctionWhichCountAsNoRows) {
  auto& strategy = strategy_of(2);
  using Ragged = std::pair<at::Tensor, at::Tensor>;
  const MapOptions known{.spec = [](const ElementSpec&) {
    return ElementSpec{{{ComponentSpec::tensor(at::kFloat, PartialShape{PartialShape::kUnknown}),
                         ComponentSpec::tensor(at::kFloat, PartialShape({}))}}};
  }};
  const auto data = range(6)
                        .map(
                            [](const at::Tensor& x) {
                              return Ragged{at::full({x.item<std::int64_t>() % 3 + 1}, 1.0F), x.to(at::kFloat)};
                            },
                            known)
                        .padded_batch(2, {.drop_remainder = true});
  const auto batches = strategy.distribute_from_function([&](const InputContext&) { return data; });
  std::vector<double> means;
  for (const auto& batch : batches) {
    const auto lengths = strategy.run(
        batches.element_spec(), [](const Ragged& mine) { return mine.first.sum(1); }, batch);
    means.push_back(strategy.reduce(ReduceOp::Mean, lengths, 0).item<double>());
  }
  EXPECT_EQ(means, (std::vector<double>{1.75, 2.5})) << "the second step has rows on one replica only";
}

TEST(Signature, SaysWhichArgumentsAreTooMany) {
  auto& strategy = strategy_of(2);
  const auto batches = strategy.distribute(range(8).batch(4));
  for (const auto& batch : batches) {
    try {
      strategy.run(
          batches.element_spec(), [](const at::Tensor&, double) {}, batch, 2.0);
      FAIL() << "one argument too many";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.number(), errors::kSignature);
      EXPECT_EQ(error.text().what, "the arguments of run have 2 parts, the signature has 1");
      EXPECT_EQ(error.text().seen, "got argument 0 int64[2], argument 1 float64[]; wanted int64[?]");
      EXPECT_NE(error.text().help.find("capture"), std::string::npos) << error.what();
    }
    const auto three = PerReplica<at::Tensor>({batch[0], batch[1], batch[1]});
    try {
      strategy.run(
          batches.element_spec(), [](const at::Tensor&) {}, three);
      FAIL() << "one component too many";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.number(), errors::kComponent) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::data
