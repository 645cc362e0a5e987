#include "lockstep/train/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/format/safetensors.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

Snapshot some_snapshot() {
  Snapshot snapshot;
  snapshot.shared = {{"model/fc.weight", at::arange(6, at::kFloat).view({2, 3})},
                     {"model/deep/name", at::full({}, 3, at::kLong)},
                     {"optimizer/fc.weight/exp_avg", at::full({2, 3}, 0.5, at::kDouble)},
                     {"counter", at::full({1}, 7, at::kInt)},
                     {"_odd/name", at::full({1}, true, at::kBool)},
                     {"has blank/x", at::empty({0, 3})},
                     {"empty/", at::full({2}, 1.5, at::kHalf)}};
  snapshot.by_replica = {{"model/norm.mean", {{0, at::full({3}, 1.0F)}, {1, at::full({3}, 2.0F)}}},
                         {"random/state", {{0, at::full({5}, 9, at::kByte)}, {11, at::full({5}, 8, at::kByte)}}},
                         {"counter", {{0, at::full({1}, 1.0F)}}}};
  snapshot.texts = {{"batches/position", R"({"epoch": 3, "row": 17})"}, {"note", "line\nend \"x\" \xc3\xa4"}, {"", ""}};
  return snapshot;
}

void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& name) {
  EXPECT_EQ(a.scalar_type(), b.scalar_type()) << name;
  EXPECT_TRUE(same_bits(a, b)) << name;
  EXPECT_TRUE(a.is_contiguous()) << name;
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.texts, b.texts);
  ASSERT_EQ(a.shared.size(), b.shared.size());
  for (const auto& [name, tensor] : a.shared) {
    ASSERT_TRUE(b.shared.contains(name)) << name;
    expect_same(tensor, b.shared.at(name), name);
  }
  ASSERT_EQ(a.by_replica.size(), b.by_replica.size());
  for (const auto& [name, tensors] : a.by_replica) {
    ASSERT_TRUE(b.by_replica.contains(name)) << name;
    ASSERT_EQ(tensors.size(), b.by_replica.at(name).size()) << name;
    for (const auto& [replica, tensor] : tensors) expect_same(tensor, b.by_replica.at(name).at(replica), name);
  }
}

TEST(Checkpoint, IsReadBackBitForBit) {
  const TemporaryFolder folder;
  for (const Snapshot& snapshot : {some_snapshot(), Snapshot{}}) {
    write_checkpoint(snapshot, folder / "x", {.step = 12, .metrics = {{"loss", 0.25}}});
    expect_same(read_checkpoint(folder / "x"), snapshot);
    EXPECT_EQ(read_manifest(folder / "x").step, 12);
    EXPECT_EQ(read_manifest(folder / "x").metrics.at("loss"), 0.25);
  }
}

TEST(Checkpoint, HasAFileForEachPart) {
  const TemporaryFolder folder;
  write_checkpoint(some_snapshot(), folder / "x");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "x")) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"_values.replicas.safetensors", "_values.safetensors", "manifest.json",
                                             "model.replicas.safetensors", "model.safetensors", "optimizer.safetensors",
                                             "random.replicas.safetensors", "texts.json"}));
  // The weights have their own names, for Python and for ls::load.
  const auto weights = load_tensors(folder / "x/model.safetensors");
  EXPECT_EQ(weights.size(), 2);
  EXPECT_TRUE(weights.contains("fc.weight"));
  EXPECT_EQ(load_metadata(folder / "x/model.safetensors").at("format"), "pt");
}

TEST(Checkpoint, IsTheSameBytesForTheSameSnapshot) {
  const TemporaryFolder folder;
  write_checkpoint(some_snapshot(), folder / "x");
  write_checkpoint(some_snapshot(), folder / "y");
  EXPECT_EQ(read_manifest(folder / "x").files, read_manifest(folder / "y").files);
}

TEST(Checkpoint, TensorsMayBeWrittenToAndOutliveTheFiles) {
  const TemporaryFolder folder;
  write_checkpoint(some_snapshot(), folder / "x");
  const std::string before = file_content(folder / "x/model.safetensors");
  Snapshot snapshot = read_checkpoint(folder / "x");
  snapshot.shared.at("model/fc.weight").fill_(9);
  EXPECT_EQ(file_content(folder / "x/model.safetensors"), before);
  fs::remove_all(folder / "x");
  EXPECT_TRUE(same_bits(snapshot.shared.at("model/fc.weight"), at::full({2, 3}, 9.0F)));
  expect_same(snapshot.by_replica.at("random/state").at(11), at::full({5}, 8, at::kByte), "random/state");
}

TEST(Checkpoint, IsReplacedAtOnceOrNotAtAll) {
  const TemporaryFolder folder;
  write_checkpoint(some_snapshot(), folder / "x");
  Snapshot unfit = some_snapshot();
  unfit.texts["note"] = "\xff";
  expect_error([&] { write_checkpoint(unfit, folder / "x"); }, Code::InvalidArgument, errors::kCheckpoint,
               {"the text 'note' of a snapshot is not UTF-8"});
  unfit = some_snapshot();
  unfit.shared["model/meta"] = at::empty({2}, at::TensorOptions(at::kMeta));
  expect_error([&] { write_checkpoint(unfit, folder / "x"); }, Code::Unimplemented, errors::kSafetensors,
               {"tensor 'meta'"});
  expect_same(read_checkpoint(folder / "x"), some_snapshot());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(Checkpoint, ShowsEveryFlippedByteWhenItIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_checkpoint(some_snapshot(), path);
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const std::string content = file_content(entry.path().string());
    for (std::size_t at = 0; at < content.size(); at += 7) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      folder.file("x/" + name, damaged);
      const SeenError seen = error_of([&] { read_checkpoint(path); });
      ASSERT_EQ(seen.number, errors::kCheckpoint) << name << ' ' << at << '\n' << seen.text;
      ASSERT_TRUE(contains(seen.parts.what, "cannot be read: " + name)) << seen.text;
    }
    folder.file("x/" + name, content);
  }
  expect_same(read_checkpoint(path), some_snapshot());
}

TEST(Checkpoint, NeedsAFolderAndAVersionThatItKnows) {
  const TemporaryFolder folder;
  expect_error([&] { read_checkpoint(folder / "none"); }, Code::NotFound, errors::kCheckpoint,
               {"there is no checkpoint"});
  expect_error([&] { read_checkpoint(folder.file("file", "")); }, Code::NotFound, errors::kCheckpoint, {"there is no"});
  expect_error([&] { read_checkpoint(folder.path()); }, Code::DataLoss, errors::kCheckpoint,
               {"manifest.json is missing"});
  Snapshot newer;
  newer.version = Snapshot::kVersion + 1;
  write_checkpoint(newer, folder / "newer");
  expect_error([&] { read_checkpoint(folder / "newer"); }, Code::Unimplemented, errors::kCheckpoint,
               {"has a snapshot of version 2, this Lockstep reads version 1"});
}

TEST(Checkpoint, LooksForSpaceBeforeItWrites) {
  const TemporaryFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "NOT RUN: a small disk cannot be mounted here (needs root)";
  write_checkpoint(some_snapshot(), folder / "x");
  Snapshot big = some_snapshot();
  big.shared["model/big"] = at::empty({1 << 20}, at::kByte);
  const SeenError seen = error_of([&] { write_checkpoint(big, folder / "x"); });
  EXPECT_EQ(seen.code, Code::ResourceExhausted) << seen.text;
  EXPECT_TRUE(contains(seen.text, "no space for a checkpoint in")) << seen.text;
  expect_same(read_checkpoint(folder / "x"), some_snapshot());
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace lockstep::train
