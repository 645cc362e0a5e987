#include "lockstep/train/checkpoint/folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/format/safetensors.h"
#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using detail::CheckpointWriter;

/// Writes a small checkpoint; its path.
std::string save_step(const TemporaryFolder& folder, std::int64_t step, const std::string& bytes = "12345678") {
  const std::string path = folder / detail::checkpoint_name(step);
  CheckpointWriter writer(path);
  for (const char* part : {"model", "optimizer"}) {
    const std::string name = detail::part_file_name(part, false);
    std::vector<data::SafetensorsTensor> tensors{{"fc.weight", data::SafetensorsType::UInt8, {8}, bytes}};
    const data::SafetensorsMetadata checksums{{data::kChecksumKey, safetensors_checksums(tensors, {})}};
    data::write_safetensors(writer.path_of(name), tensors, checksums);
    writer.add({.name = name, .prefix = str(part, '/')});
  }
  writer.commit({.step = step, .metrics = {{"loss", 0.5}}});
  return path;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

TEST(CheckpointFolder, HoldsWhatWasWritten) {
  const TemporaryFolder folder;
  const std::string path = save_step(folder, 1200);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-000000001200"});
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
  const Manifest manifest = read_manifest(path);
  EXPECT_EQ(manifest.step, 1200);
  EXPECT_EQ(manifest.metrics.at("loss"), 0.5);
  EXPECT_EQ(manifest.files[0].bytes, fs::file_size(path + "/model.safetensors"));
  EXPECT_EQ(manifest.saved_at.size(), 20) << manifest.saved_at;
  EXPECT_EQ(find_damage(path), "");
  EXPECT_EQ(newest_checkpoint(folder.path())->path, path);
}

TEST(CheckpointFolder, ListsTheOldestFirst) {
  const TemporaryFolder folder;
  EXPECT_TRUE(list_checkpoints(folder / "none").empty());
  EXPECT_EQ(newest_checkpoint(folder / "none"), std::nullopt);
  for (const std::int64_t step : {20, 3, 0}) save_step(folder, step);
  for (const char* other : {"step-", "step-1x", ".step-000000000007.1-0.tmp", "best"})
    fs::create_directory(folder / other);
  std::vector<std::int64_t> steps;
  for (const auto& entry : list_checkpoints(folder.path())) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 3, 20}));
  expect_error([&] { list_checkpoints(folder.file("file", "")); }, Code::NotFound, errors::kFile,
               {"cannot list the folder"});
  expect_error([] { detail::checkpoint_name(-1); }, Code::InvalidArgument, errors::kCheckpoint,
               {"must be >= 0, got -1"});
}

TEST(CheckpointFolder, ReplacesTheCheckpointOfTheSameStep) {
  const TemporaryFolder folder;
  save_step(folder, 7, "old old!");
  const std::string path = save_step(folder, 7, "new new!");
  EXPECT_TRUE(contains(file_content(path + "/model.safetensors"), "new new!"));
  EXPECT_EQ(find_damage(path), "");
  EXPECT_EQ(names_in(folder.path()).size(), 1);
}

TEST(CheckpointFolder, NothingStaysWithoutCommit) {
  const TemporaryFolder folder;
  { const CheckpointWriter writer(folder / "a/step-000000000001"); }
  EXPECT_TRUE(names_in(folder / "a").empty());
}

TEST(CheckpointFolder, NamesWhatIsWrongInOneLine) {
  const struct {
    const char* name;
    void (*damage)(const std::string& checkpoint);
    std::string says;
  } rows[] = {
      {"NoManifest", [](const std::string& c) { fs::remove(c + "/manifest.json"); }, "manifest.json is missing"},
      {"NoFile", [](const std::string& c) { fs::remove(c + "/model.safetensors"); }, "model.safetensors is missing"},
      {"Truncated", [](const std::string& c) { fs::resize_file(c + "/model.safetensors", 50); },
       "model.safetensors has 50 bytes, "},
      {"EmptyManifest", [](const std::string& c) { fs::resize_file(c + "/manifest.json", 0); },
       "manifest.json is damaged: it does not begin as a manifest does"},
      {"ManifestIsAFolder",
       [](const std::string& c) {
         fs::remove(c + "/manifest.json");
         fs::create_directory(c + "/manifest.json");
       },
       "cannot read manifest.json"},
      {"NotAFolder",
       [](const std::string& c) {
         fs::remove_all(c);
         std::ofstream{c} << "x";
       },
       "manifest.json is missing"},
  };
  const LogSilence silence;
  for (const auto& row : rows) {
    const TemporaryFolder folder;
    const std::string older = save_step(folder, 1);
    const std::string newer = save_step(folder, 2);
    row.damage(newer);
    const std::string damage = find_damage(newer);
    EXPECT_TRUE(contains(damage, row.says)) << row.name << ": " << damage;
    EXPECT_FALSE(contains(damage, "\n")) << damage;
    EXPECT_EQ(newest_checkpoint(folder.path())->path, older) << row.name;
  }
}

/// The newer checkpoint of two has lost a byte of `name` or more: this is found, and in one line the older one takes its place.
void expect_older(const TemporaryFolder& folder, const std::string& name, std::size_t at) {
  LoggedLines lines;
  const auto newest = newest_checkpoint(folder.path());
  ASSERT_TRUE(newest && newest->step == 1) << name << ' ' << at;
  const std::vector<std::string> logged = lines.lines();
  ASSERT_EQ(logged.size(), 1) << name << ' ' << at;
  ASSERT_TRUE(contains(logged[0], str("step-000000000002 is not used: ", name, ' '))) << logged[0];
  ASSERT_FALSE(contains(logged[0], "\n")) << logged[0];
}

TEST(CheckpointFolder, ShowsEveryFlippedByte) {
  const TemporaryFolder folder;
  save_step(folder, 1);
  const std::string path = save_step(folder, 2);
  int tensors_named = 0;
  for (const std::string& name : names_in(path)) {
    const std::string content = file_content(path + '/' + name);
    for (std::size_t at = 0; at < content.size(); ++at) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      std::ofstream(path + '/' + name, std::ios::binary) << damaged;
      const std::string damage = find_damage(path);
      ASSERT_TRUE(contains(damage, name)) << name << " byte " << at << ": " << damage;
      ASSERT_FALSE(contains(damage, "\n")) << damage;
      tensors_named += contains(damage, "tensor 'fc.weight'");
      ASSERT_NO_FATAL_FAILURE(expect_older(folder, name, at));
    }
    std::ofstream(path + '/' + name, std::ios::binary) << content;
  }
  EXPECT_EQ(find_damage(path), "");
  EXPECT_GE(tensors_named, 2 * 8);  // at least the bytes of both
}

TEST(CheckpointFolder, ShowsEveryTruncation) {
  const TemporaryFolder folder;
  save_step(folder, 1);
  const std::string path = save_step(folder, 2);
  for (const std::string& name : names_in(path)) {
    const std::string content = file_content(path + '/' + name);
    for (std::size_t size = 0; size <= content.size() + 1; ++size) {  // and with a byte too many
      if (size == content.size()) continue;
      std::ofstream(path + '/' + name, std::ios::binary) << (content + 'x').substr(0, size);
      const std::string damage = find_damage(path);
      ASSERT_TRUE(contains(damage, name)) << name << " of " << size << " bytes: " << damage;
      ASSERT_FALSE(contains(damage, "\n")) << damage;
      ASSERT_NO_FATAL_FAILURE(expect_older(folder, name, size));
    }
    std::ofstream(path + '/' + name, std::ios::binary) << content;
  }
  EXPECT_EQ(find_damage(path), "");
}

TEST(CheckpointFolder, FallsBackToAnOlderCheckpointAndSaysSo) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {1, 2, 3}) save_step(folder, step);
  fs::remove(folder / "step-000000000003/model.safetensors");
  LoggedLines lines;
  EXPECT_EQ(newest_checkpoint(folder.path())->step, 2);
  ASSERT_EQ(lines.lines().size(), 1);
  EXPECT_TRUE(contains(lines.lines()[0], "step-000000000003 is not used: model.safetensors is missing"))
      << lines.lines()[0];
  fs::remove_all(folder / "step-000000000001");
  fs::resize_file(folder / "step-000000000002/manifest.json", 3);
  EXPECT_EQ(newest_checkpoint(folder.path()), std::nullopt);
}

TEST(CheckpointFolder, LeavesOutAPart) {
  const TemporaryFolder folder;
  save_step(folder, 1);
  const std::string path = save_step(folder, 2);
  detail::leave_out_part(path, "optimizer");
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"manifest.json", "model.safetensors"}));
  EXPECT_EQ(read_manifest(path).left_out, std::vector<std::string>{"optimizer"});
  EXPECT_EQ(find_damage(path), "");
  EXPECT_EQ(newest_checkpoint(folder.path())->step, 1);  // it can be evaluated, not resumed
  const std::string manifest = file_content(path + "/manifest.json");
  detail::leave_out_part(path, "optimizer");
  detail::leave_out_part(path, "other");
  EXPECT_EQ(file_content(path + "/manifest.json"), manifest);
}

TEST(CheckpointFolder, RemovesWhatKilledProcessesLeft) {
  const TemporaryFolder folder;
  const std::string path = save_step(folder, 1);
  fs::create_directories(folder / ".step-000000000002.77-0.tmp/deep");
  fs::create_directory(folder / ".hidden");
  std::ofstream{path + "/manifest.json.77-0.tmp"} << "x";
  detail::leave_out_part(path, "optimizer");
  std::ofstream{path + "/optimizer.safetensors"} << "killed before it was removed";
  std::ofstream{path + "/notes.txt"} << "of the user";
  detail::remove_unfinished(folder.path());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{".hidden", "step-000000000001"}));
  EXPECT_EQ(names_in(path), (std::vector<std::string>{"manifest.json", "model.safetensors", "notes.txt"}));
  detail::remove_checkpoint(path);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{".hidden"});
  expect_error([&] { detail::remove_checkpoint(path); }, Code::NotFound, errors::kFile, {"cannot remove"});
}

}  // namespace
}  // namespace lockstep::train
