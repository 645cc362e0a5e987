#include "lockstep/data/distribute/step_source.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/distribute/distributed_dataset.h"
#include "lockstep/data/own_tensor.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

// Replicas write into their batches and differentiate through them at the same time: no replica may see another's
// changes.
namespace lockstep::data {
namespace {

using at::Tensor;

MirroredStrategy& two_replicas() {
  static MirroredStrategy strategy({.devices = test_devices(2), .seed = 7});
  return strategy;
}

struct Source {
  std::string name;
  std::function<DistributedDataset<Tensor>()> distribute;
};

Dataset<Tensor> with_policy(const Dataset<Tensor>& dataset, AutoShardPolicy policy) {
  return dataset.with_options({.auto_shard_policy = policy});
}

/// All ways in which batches reach replicas.
std::vector<Source> sources() {
  std::vector<Source> all;
  const auto rows = from_tensor_slices(at::rand({14, 3, 2, 2}));
  const auto expanded = range(6).map([](Tensor x) { return x.to(at::kFloat).view({1, 1}).expand({4, 3}); });
  const auto transposed = range(6).map([](Tensor) { return at::rand({3, 4}).t(); });
  const auto in_graph = range(6).map([](Tensor) { return at::rand({4, 3}).requires_grad_() * 2; });
  const auto channels_last = range(6).map([](Tensor) {
    return at::rand({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  });
  for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    const std::string name = policy == AutoShardPolicy::Data ? "ceil split" : "balanced stream";
    const auto add = [&](const char* what, const Dataset<Tensor>& dataset) {
      all.push_back({str(name, ", ", what), [=] { return two_replicas().distribute(with_policy(dataset, policy)); }});
    };
    add("batches", rows.batch(4));
    add("odd batches", rows.batch(5));
    add("padded batches", rows.padded_batch(4));
    add("unbatched and batched", rows.batch(3).unbatch().batch(4));
    add("expanded batches", expanded);
    add("transposed batches", transposed);
    add("batches of a graph", in_graph);
    add("another memory format", channels_last);
  }
  const Tensor one = at::rand({4, 3});
  const Tensor graph = at::rand({4, 3}).requires_grad_();
  const auto add = [&](const char* name, ReplicationMode mode, const std::function<Dataset<Tensor>()>& make) {
    all.push_back({name, [=] {
                     return two_replicas().distribute_from_function([=](const InputContext&) { return make(); },
                                                                    {.replication_mode = mode});
                   }});
  };
  for (const ReplicationMode mode : {ReplicationMode::PerWorker, ReplicationMode::PerReplica}) {
    add("one tensor for all", mode, [=] { return range(6).map([=](Tensor) { return one; }); });
    add("parts of one tensor", mode, [=] { return range(6).map([=](Tensor) { return one.narrow(0, 1, 2); }); });
    add("a parameter", mode, [=] { return range(6).map([=](Tensor) { return graph; }); });
    add("rows of a batch", mode, [=] { return from_tensors(at::rand({6, 3})).unbatch(); });
  }
  return all;
}

TEST(SeparateReplicas, HaveTensorsOfTheirOwn) {
  for (const Source& source : sources()) {
    SCOPED_TRACE(source.name);
    int steps = 0;
    for (const auto& step : source.distribute()) {
      ++steps;
      for (std::size_t k = 0; k < step.size(); ++k) {
        EXPECT_FALSE(step[k].is_view());
        EXPECT_FALSE(step[k].requires_grad());
        EXPECT_LE(step[k]._version(), step[k].is_cuda() ? 1 : 0) << "a copy on a GPU may be written once";
      }
      Tensor first = step[0], second = step[1];
      const Tensor before = first.clone();
      const auto version = first._version();
      second.add_(1);
      EXPECT_EQ(first._version(), version) << "one counter for both";
      EXPECT_TRUE(at::equal(first, before)) << "memory is shared";
      second.resize_({64}).fill_(-1);
      first.resize_({64});
      EXPECT_TRUE(at::equal(first.slice(0, 0, before.numel()).view(-1), before.contiguous().view(-1)) ||
                  !before.is_contiguous());
      if (steps == 3) break;
    }
    EXPECT_GT(steps, 1);
  }
}

TEST(SeparateReplicas, WriteInPlaceAndDifferentiateAtTheSameTime) {
  auto& strategy = two_replicas();
  const Tensor images = at::rand({64, 8}) * 255;
  for (const AutoShardPolicy policy : {AutoShardPolicy::Data, AutoShardPolicy::Off}) {
    const auto batches = strategy.distribute(with_policy(from_tensor_slices(images).batch(8), policy));
    const Tensor weights = at::rand({8});
    std::int64_t begin = 0;
    for (int pass = 0; pass < 4; ++pass, begin = 0) {
      for (const auto& batch : batches) {
        const auto gradients = strategy.run(
            [&](Tensor x) {
              const Tensor mine = weights.clone().requires_grad_();
              x.div_(255);
              x.mul_(mine);  // x becomes a part of the graph
              x.square().sum().backward();
              return mine.grad();
            },
            batch);
        for (std::size_t k = 0; k < 2; ++k, begin += 4) {
          const Tensor expected = (images.slice(0, begin, begin + 4) / 255).square().sum(0) * weights * 2;
          EXPECT_TRUE(at::allclose(gradients[k], expected)) << "rows from " << begin;
        }
      }
    }
  }
}

TEST(OwnTensors, ShareMemoryWhereTheyLieInOnePiece) {
  const Tensor batch = at::arange(24, at::kCPU).view({6, 2, 2});
  const Tensor part = own_rows(batch, 2, 3);
  EXPECT_EQ(part.const_data_ptr(), batch[2].const_data_ptr());
  EXPECT_TRUE(at::equal(part, batch.slice(0, 2, 5)));
  EXPECT_EQ(part.storage().nbytes(), part.nbytes());
  EXPECT_EQ(own_row(batch, 5).sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_TRUE(at::equal(own_row(batch, 5), batch[5]));
  EXPECT_EQ(own_rows(batch, 6, 0).sizes(), (at::IntArrayRef{0, 2, 2}));

  const Tensor last = at::rand({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(own_rows(last, 1, 2).strides(), last.strides());
  EXPECT_TRUE(at::equal(own_rows(last, 1, 2), last.slice(0, 1, 3)));
}

TEST(OwnTensors, KeepTheMemoryOfTheirBatch) {
  Tensor part;
  {
    const Tensor batch = at::arange(100'000).view({1000, 100});
    part = own_row(own_rows(batch, 500, 10), 3);
  }
  EXPECT_EQ(part[7].item<std::int64_t>(), 50'307);
  part.resize_({300});
  EXPECT_EQ(part[7].item<std::int64_t>(), 50'307);
}

TEST(OwnTensors, AreCopiedWhereRowsShareMemory) {
  const Tensor one = at::zeros({1, 2});
  for (const Tensor& batch : {one.expand({4, 2}), at::rand({2, 4}).t(), at::rand({4, 5}).slice(1, 0, 2),
                              at::_conj(at::rand({4, 2}, at::kComplexFloat))}) {
    Tensor part = own_rows(batch, 1, 2);
    EXPECT_TRUE(at::equal(part, batch.slice(0, 1, 3)));
    EXPECT_TRUE(at::equal(own_row(batch, 3), batch[3]));
    EXPECT_FALSE(part.is_view());
  }
  own_rows(one.expand({4, 2}), 0, 1).add_(1);
  EXPECT_EQ(one.sum().item<float>(), 0);
}

}  // namespace
}  // namespace lockstep::data
