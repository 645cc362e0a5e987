#include "lockstep/train/checkpoint/manager.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

namespace files = std::filesystem;
using Steps = std::vector<std::int64_t>;

Snapshot snapshot_at(std::int64_t step, std::int64_t elements = 4) {
  Snapshot snapshot;
  snapshot.shared = {{"model/w", at::full({elements}, static_cast<double>(step), at::kFloat)},
                     {"optimizer/w/exp_avg", at::full({elements}, 0.5, at::kFloat)}};
  return snapshot;
}

Steps steps_in(const std::string& folder) {
  Steps steps;
  for (const auto& entry : list_checkpoints(folder)) steps.push_back(entry.step);
  return steps;
}

Steps complete_in(const std::string& folder) {
  Steps steps;
  for (const auto& entry : list_checkpoints(folder)) {
    if (read_manifest(entry.path).is_complete()) steps.push_back(entry.step);
  }
  return steps;
}

TEST(CheckpointManager, KeepsTheNewestAndTheBest) {
  for (const bool background : {false, true}) {
    const TemporaryFolder folder;
    CheckpointManager manager(folder / "a/b", {.keep = {.keep = 2, .best_metric = "val_loss", .keep_optimizer = 2},
                                               .background = background});
    EXPECT_EQ(manager.resume(), std::nullopt);
    for (const std::int64_t step : {10, 20, 30, 40, 50}) {
      const double loss = step == 20 ? 1 : step == 30 ? std::numeric_limits<double>::quiet_NaN() : 2;
      EXPECT_TRUE(manager.save(step, snapshot_at(step), {{"val_loss", loss}}));
    }
    manager.wait();
    EXPECT_FALSE(manager.is_busy());
    EXPECT_EQ(steps_in(manager.folder()), (Steps{20, 40, 50}));
    EXPECT_EQ(complete_in(manager.folder()), (Steps{40, 50}));
    EXPECT_EQ(manager.resume()->step, 50);
    EXPECT_EQ(read_checkpoint(manager.resume()->path).shared.at("model/w")[0].item<float>(), 50);
  }
}

TEST(CheckpointManager, WritesTheSnapshotAndNotWhatCameAfterIt) {
  const TemporaryFolder folder;
  const Snapshot first = snapshot_at(1, 1 << 20);
  CheckpointManager manager(folder.path());
  manager.save(1, first);
  manager.save(2, snapshot_at(2));  // waits for the first
  manager.wait();
  EXPECT_EQ(steps_in(folder.path()), (Steps{1, 2}));
}

TEST(CheckpointManager, ContinuesAtAnOlderCheckpointAndDropsTheOthers) {
  const TemporaryFolder folder;
  {
    CheckpointManager manager(folder.path());
    for (const std::int64_t step : {1, 2, 3}) manager.save(step, snapshot_at(step));
  }
  files::remove(folder / "step-000000000003/model.safetensors");
  const LogSilence silence;
  CheckpointManager manager(folder.path());
  EXPECT_EQ(manager.resume()->step, 2);
  EXPECT_EQ(steps_in(folder.path()), (Steps{1, 2, 3}));  // nothing is removed before something new is there
  manager.save(2, snapshot_at(2));
  manager.wait();
  EXPECT_EQ(steps_in(folder.path()), (Steps{1, 2}));
}

TEST(CheckpointManager, RefusesTheFolderOfAnotherTraining) {
  const TemporaryFolder folder;
  {
    CheckpointManager manager(folder.path());
    manager.save(7, snapshot_at(7));
    expect_error([&] { CheckpointManager second(folder.path()); }, Code::FailedPrecondition, errors::kCheckpoint,
                 {"another checkpoint manager writes to"});
  }
  CheckpointManager manager(folder.path());
  expect_error([&] { manager.save(1, snapshot_at(1)); }, Code::FailedPrecondition, errors::kCheckpoint,
               {"has a checkpoint of step 7, which is later than step 1", "resume()"});
  expect_error([&] { manager.save(-1, snapshot_at(1)); }, Code::FailedPrecondition, errors::kCheckpoint, {});
  expect_error([&] { CheckpointManager(folder / "x", {.keep = {.keep_optimizer = 1}}); }, Code::InvalidArgument,
               errors::kBadOption, {"keep_optimizer must be >= 2, or 0 for all, got 1"});
  EXPECT_EQ(steps_in(folder.path()), Steps{7});
}

TEST(CheckpointManager, ReportsWhatFailedInTheBackgroundAtTheNextCall) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder / "a");
  Snapshot unfit = snapshot_at(1);
  unfit.texts["x"] = "\xff";
  manager.save(1, unfit);
  expect_error([&] { manager.save(2, snapshot_at(2)); }, Code::InvalidArgument, errors::kCheckpoint, {"is not UTF-8"});
  manager.save(3, snapshot_at(3));  // once is enough
  manager.save(4, unfit);
  expect_error([&] { manager.wait(); }, Code::InvalidArgument, errors::kCheckpoint, {"is not UTF-8"});
  manager.wait();
  EXPECT_EQ(steps_in(folder / "a"), Steps{3});
  LoggedLines lines;
  {
    CheckpointManager another(folder / "b");
    another.save(1, unfit);
  }
  EXPECT_EQ(lines.count("the last checkpoint in " + (folder / "b") + " was not written: "), 1);
}

/// The lowest priority of this process's threads.
int highest_niceness() {
  int highest = -20;
  for (const auto& thread : files::directory_iterator("/proc/self/task")) {
    const auto id = static_cast<id_t>(std::stoi(thread.path().filename().string()));
    highest = std::max(highest, ::getpriority(PRIO_PROCESS, id));
  }
  return highest;
}

TEST(CheckpointManager, WritesWithTheLowestPrioritySoThatTrainingGoesFirst) {
  const TemporaryFolder folder;
  CheckpointManager manager(folder.path());
  manager.save(1, snapshot_at(1, 1 << 24));
  int seen = -20;
  while (manager.is_busy() && seen < 19) seen = highest_niceness();
  EXPECT_EQ(seen, 19);
  manager.wait();
}

TEST(CheckpointManager, LeavesOutWhatComesWhileItIsBusy) {
  const TemporaryFolder folder;
  LoggedLines lines;
  CheckpointManager manager(folder.path(), {.keep = {.keep = 0}, .leave_out_when_busy = true});
  int written = 0;
  for (std::int64_t step = 1; step <= 200 && manager.left_out() == 0; ++step)
    written += manager.save(step, snapshot_at(step, 1 << 22));
  EXPECT_EQ(manager.left_out(), 1);
  manager.wait();
  EXPECT_EQ(steps_in(folder.path()).size(), written);
  EXPECT_EQ(lines.count("is left out: the previous one is still being written to " + folder.path().string()), 1);
  EXPECT_TRUE(manager.save(1000, snapshot_at(1000)));
}

TEST(Unwinding, IsOnlyByAnExceptionThatWasThrownSince) {
  struct Notes {
    ~Notes() { seen.push_back(exception.is_on_its_way()); }
    std::vector<bool>& seen;
    detail::Unwinding exception = {};
  };
  struct InUnwinding {
    ~InUnwinding() { const Notes notes{seen}; }
    std::vector<bool>& seen;
  };
  std::vector<bool> seen;
  { const Notes notes{seen}; }
  EXPECT_EQ(seen, std::vector<bool>{false});
  try {
    const Notes notes{seen};
    throw std::runtime_error("failed");
  } catch (const std::runtime_error&) {
    const Notes notes{seen};
  }
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false}));
  try {
    const InUnwinding made_while_another_is_on_its_way{seen};
    throw std::runtime_error("failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false, false}));
}

TEST(CheckpointManager, RemovesWhatAKilledOneLeft) {
  const TemporaryFolder folder;
  files::create_directories(folder / ".step-000000000002.77-0.tmp");
  const CheckpointManager manager(folder.path());
  EXPECT_FALSE(files::exists(folder / ".step-000000000002.77-0.tmp"));
}

}  // namespace
}  // namespace lockstep::train
