#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/train.h"
#include "lockstep/train/checkpoint/errors.h"
#include "tests/multi_worker/together.h"
#include "tests/support/expect_error.h"
#include "tests/support/held_files.h"
#include "tests/support/logged_lines.h"

// Metrics and checkpoints of several workers.
namespace together {
namespace {

namespace nn = torch::nn;
namespace files = std::filesystem;

TEST_F(Together, AnExactAreaHasTheScoresOfAllWorkers) {
  const int rows = 40 * strategy.num_replicas_in_sync();
  const torch::Tensor scores = torch::sin(torch::arange(rows, torch::kDouble).mul(1.7)).mul(8).round();
  const torch::Tensor labels =
      torch::cos(torch::arange(rows, torch::kDouble)).add(scores * 0.1).gt(0).to(torch::kDouble);
  const auto auc = ls::train::metrics::auc({.exact = true});
  ls::train::Meters meters(strategy, {auc, ls::train::metrics::mse()});
  strategy.run([&] {
    const auto& replica = ls::get_replica_context();
    // One replica of two has no rows.
    const int id = replica.replica_id_in_sync_group(), begin = 40 * id, end = id % 2 == 0 ? begin + 80 : begin;
    meters.add(scores.slice(0, begin, end).to(replica.device()), labels.slice(0, begin, end).to(replica.device()));
  });
  const ls::train::Logs seen = meters.values();
  const auto& gathered = dynamic_cast<const ls::train::GatheredMetric&>(*auc);
  EXPECT_EQ(seen.at("auc"), gathered.value_of(gathered.keep(scores, labels)));
  EXPECT_NEAR(seen.at("mse"), (scores - labels).square().mean().item<double>(), 1e-12);
}

struct ShardedNet : nn::Module {
  ShardedNet() {
    register_module("layer", layer);
    register_module("norm", norm);
    register_module("wide", wide);
  }
  torch::Tensor forward(const torch::Tensor& x) { return wide->forward(layer->forward(norm->forward(x))); }
  nn::Linear layer{4, 2}, wide{2, 300};
  nn::BatchNorm1d norm{4};
};

/// A folder visible to all workers, empty at first.
struct Sharded : Together {
  std::string folder = file + ".folder";
  decltype(strategy.make<ShardedNet>()) model = strategy.make<ShardedNet>();
  decltype(strategy.make_optimizer<torch::optim::Adam>(model, 0.1)) optimizer =
      strategy.make_optimizer<torch::optim::Adam>(model, 0.1);
  const std::vector<ls::NamedState> parts{{"model", model}, {"optimizer", optimizer}};

  Sharded() { train(model, optimizer, 2); }
  ~Sharded() override {
    strategy.broadcast(0);  // no worker reads any more
    if (rank == 0) files::remove_all(folder);
  }
  static ls::train::CheckpointOptions options() { return {.sharded = true}; }
};

TEST_F(Sharded, EachWorkerWritesAPartAndAllReadTheWhole) {
  const ls::Snapshot captured = ls::capture(strategy, parts), whole = ls::gather(strategy, captured);
  ls::train::CheckpointManager checkpoints(strategy, folder, options());
  EXPECT_EQ(checkpoints.resume(), std::nullopt);
  strategy.broadcast(0);
  for (const int step : {2, 4}) EXPECT_TRUE(checkpoints.save(step, captured, {{"loss", 1.0 / step}}));
  checkpoints.wait();
  const auto newest = ls::train::newest_checkpoint(folder);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, 4);
  const ls::train::Manifest manifest = ls::train::read_manifest(newest->path);
  std::set<std::string> names;
  std::map<int, std::uint64_t> bytes;
  for (const auto& written : manifest.files) {
    names.insert(written.name);
    for (int w = 0; w < workers; ++w) {
      if (written.name.find("." + std::to_string(w) + "-of-") != std::string::npos) bytes[w] += written.bytes;
    }
  }
  EXPECT_TRUE(names.contains("texts.json"));
  EXPECT_TRUE(names.contains("model.0-of-" + std::to_string(workers) + ".safetensors") ||
              names.contains("model.1-of-" + std::to_string(workers) + ".safetensors"));
  ASSERT_EQ(std::ssize(bytes), workers);
  for (const auto& [worker, of_worker] : bytes) {
    EXPECT_TRUE(names.contains(ls::str("random.", worker, "-of-", workers, ".replicas.safetensors")));
    EXPECT_LT(of_worker, 4 * bytes[0]) << worker;
  }
  for (const auto& entry : files::directory_iterator(newest->path)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(names.contains(name) || name == "manifest.json") << name;
  }
  const ls::Snapshot read = ls::train::read_checkpoint(newest->path);
  EXPECT_EQ(read.texts, whole.texts);
  ASSERT_EQ(read.shared.size(), whole.shared.size());
  for (const auto& [name, tensor] : whole.shared) EXPECT_TRUE(read.shared.at(name).equal(tensor)) << name;
  ASSERT_EQ(read.by_replica.size(), whole.by_replica.size());
  for (const auto& [name, tensors] : whole.by_replica) {
    ASSERT_EQ(std::ssize(tensors), strategy.num_replicas_in_sync());
    for (const auto& [replica, tensor] : tensors)
      EXPECT_TRUE(read.by_replica.at(name).at(replica).equal(tensor)) << name;
  }
  train(model, optimizer, 1);
  ls::restore(strategy, read, parts);
  EXPECT_EQ(optimizer.steps(), 2);
  EXPECT_EQ(ls::train::find_damage(newest->path), "");
  strategy.broadcast(0);
  if (rank == 0)
    files::remove(newest->path + "/" + *std::ranges::find_if(names, [](const std::string& name) {
                    return name.starts_with("random.1-of-");
                  }));
  strategy.broadcast(0);
  const ls::LogSilence silence;
  EXPECT_EQ(ls::train::newest_checkpoint(folder)->step, 2) << "a part of the newest is missing";
}

TEST_F(Sharded, WaitReturnsWhenAllWorkersHaveWritten) {
  ls::train::CheckpointManager checkpoints(strategy, folder, options());
  ls::HeldFiles held;
  if (rank != 0) held.release();
  checkpoints.save(3, ls::capture(strategy, parts));
  EXPECT_TRUE(ls::train::list_checkpoints(folder).empty());
  strategy.broadcast(0);
  std::thread writer_goes_on([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    held.release();
  });
  checkpoints.wait();
  EXPECT_EQ(ls::train::list_checkpoints(folder).size(), 1u) << "the chief has written";
  writer_goes_on.join();
  const auto newest = checkpoints.resume();
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, 3);
}

TEST_F(Sharded, AWorkerMayTakeLongerToWriteThanToAnswer) {
  ls::MultiWorkerMirroredStrategy impatient(
      {.devices = ls::test_devices(2), .communication = {.timeout_seconds = 2}, .intra_op_threads = 1});
  const ls::Snapshot captured = ls::capture(impatient, {});
  ls::train::CheckpointManager checkpoints(impatient, folder, options());
  ls::HeldFiles held;
  if (rank == 0) held.release();
  checkpoints.save(1, captured);
  std::thread writer_goes_on([&] {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    held.release();
  });
  EXPECT_NO_THROW(checkpoints.save(2, captured)) << "the chief waits for worker 1, and worker 1 for the chief";
  EXPECT_NO_THROW(checkpoints.wait());
  writer_goes_on.join();
  EXPECT_EQ(ls::train::list_checkpoints(folder).size(), 2u);
}

TEST_F(Sharded, AFolderThatIsNotSharedIsRefusedOnAllWorkers) {
  folder += std::to_string(rank);
  ls::train::CheckpointManager checkpoints(strategy, folder, options());
  for (const bool at_first : {true, false}) {
    ls::expect_error(
        [&] {
          at_first ? checkpoints.require_shared_folder() : void(checkpoints.save(1, ls::capture(strategy, parts)));
        },
        ls::Code::FailedPrecondition, ls::errors::kCheckpoint,
        {"worker 1 does not see in " + file + ".folder1 what the chief has made there",
         "need a folder that all workers share"});
  }
  EXPECT_TRUE(ls::train::list_checkpoints(folder).empty());
  if (rank == 0) {
    for (const auto& left : files::directory_iterator(folder)) EXPECT_EQ(left.path().filename(), ".lock");
  }
}

TEST_F(Sharded, AWorkerThatCannotWriteLeavesTheCheckpointsBefore) {
  ls::train::CheckpointManager checkpoints(strategy, folder, options());
  ls::Snapshot fit = ls::capture(strategy, parts), unfit = fit;
  EXPECT_TRUE(checkpoints.save(1, fit));
  if (rank == 1) {
    for (auto& [replica, tensor] : unfit.by_replica.at("model/norm.running_mean"))
      tensor = tensor.to(torch::kComplexFloat);
  }
  EXPECT_TRUE(checkpoints.save(2, unfit));
  const std::string seen = ls::error_of([&] { checkpoints.save(3, fit); }).text;
  EXPECT_TRUE(ls::contains(seen, "worker 1 could not write its part of a checkpoint")) << seen;
  const auto left = ls::train::list_checkpoints(folder);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].step, 1);
}

TEST_F(Sharded, NeedsTheStrategy) {
  ls::expect_error([&] { ls::train::CheckpointManager(folder, {.sharded = true}); }, ls::Code::InvalidArgument,
                   ls::errors::kBadOption, {"needs the strategy of the workers", "CheckpointManager(strategy, folder"});
  ls::expect_error([&] { ls::train::CheckpointManager(strategy, folder, {}); }, ls::Code::InvalidArgument,
                   ls::errors::kBadOption, {"is for sharded checkpoints, got .sharded = false"});
}

}  // namespace
}  // namespace together
