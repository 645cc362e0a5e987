// The command line's operations on checkpoints and logs.

#include <gtest/gtest.h>

#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/safetensors.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/train/checkpoint/folder.h"
#include "lockstep/train/logs/event_file.h"
#include "lockstep/train/logs/line_logs.h"
#include "tests/support/launches.h"

namespace lockstep {
namespace {

struct Answer {
  explicit Answer(const Strings& arguments) {
    Launch launch(arguments);
    code = launch.wait();
    out = launch.out();
    err = launch.err();
  }
  int code;
  std::string out, err;
};

std::string save_checkpoint(const TemporaryFolder& folder, std::int64_t step) {
  const std::string path = folder / train::detail::checkpoint_name(step);
  train::detail::CheckpointWriter writer(path);
  data::write_safetensors(writer.path_of("model.safetensors"),
                          {{"fc.weight", data::SafetensorsType::Float32, {2}, "01234567"}}, {});
  writer.add({.name = "model.safetensors", .prefix = "model/"});
  writer.commit({.step = step, .metrics = {{"val_loss", 0.25}}});
  return path;
}

TEST(Inspect, ShowsCheckpoints) {
  const TemporaryFolder folder;
  const std::string path = save_checkpoint(folder, 12);
  save_checkpoint(folder, 24);
  const Answer one({"inspect", path});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(contains(one.out, "checkpoint: step 12, ")) << one.out;
  EXPECT_TRUE(contains(one.out, "val_loss 0.25")) << one.out;
  EXPECT_TRUE(contains(one.out, "    model/fc.weight  F32 [2]\n")) << one.out;
  const Answer all({"inspect", folder.path()});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_TRUE(contains(all.out, "step-000000000012: step 12, ")) << all.out;
  EXPECT_EQ(count(all.out, "\n"), 2) << all.out;
  const Answer weights({"inspect", path + "/model.safetensors"});
  EXPECT_TRUE(contains(weights.out, "    fc.weight  F32 [2]\n")) << weights.out;
}

TEST(Inspect, ShowsLogsAndRecords) {
  const TemporaryFolder folder;
  train::EventFile events(folder.path(), {.resume_after = 6});
  for (int step = 7; step < 9; ++step) events.scalar("epoch_loss", step, 0.5);
  events.close();
  const Answer answer({"inspect", events.path()});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out,
            "resumed at step 7\nevent file: 5 events, 1 tag\n  epoch_loss  2 scalars, steps 7 to 8, last 0.5\n");
  {
    data::TFRecordWriter writer(folder / "rows");
    for (const char* record : {"a", "bcd"}) writer.write(record);
  }
  EXPECT_EQ(Answer({"inspect", folder / "rows"}).out, "TFRecord: 2 records, 4 B, the longest 3 B\n");
}

TEST(Verify, HasAVerdictForEachAndAnExitCode) {
  const TemporaryFolder folder;
  const std::string path = save_checkpoint(folder, 12), newer = save_checkpoint(folder, 24);
  const Answer good({"verify", folder.path()});
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.out, "ok       " + path + "\nok       " + newer + "\n");
  std::filesystem::resize_file(newer + "/model.safetensors", 10);
  const Answer bad({"verify", folder.path()});
  EXPECT_EQ(bad.code, 5);
  EXPECT_TRUE(contains(bad.out, "ok       " + path + "\ndamaged  " + newer + ": model.safetensors has 10 bytes, "))
      << bad.out;
  EXPECT_EQ(Answer({"verify", newer}).code, 5);
  const Answer record({"verify", folder.file("rows", "noise that is not a TFRecord")});
  EXPECT_EQ(record.code, 4);
  EXPECT_TRUE(contains(record.out, "damaged  ")) << record.out;
}

TEST(Verify, FindsAByteOfAnyFileAndNamesIt) {
  const TemporaryFolder folder;
  const std::string path = save_checkpoint(folder, 12), newer = save_checkpoint(folder, 24);
  for (const std::string name : {"manifest.json", "model.safetensors"}) {
    const std::string content = file_content(newer + '/' + name);
    std::vector<std::string> damaged{"", content.substr(0, content.size() / 2), content.substr(0, content.size() - 1),
                                     content + '\n'};
    for (const std::size_t at : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
      damaged.push_back(content);
      damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 1);
    }
    for (std::size_t k = 0; k < damaged.size(); ++k) {
      folder.file("step-000000000024/" + name, damaged[k]);
      const Answer answer({"verify", folder.path()});
      EXPECT_EQ(answer.code, 5) << name << ' ' << k;
      EXPECT_TRUE(contains(answer.out, str("ok       ", path, "\ndamaged  ", newer, ": ", name, ' '))) << answer.out;
      EXPECT_EQ(count(answer.out, "\n"), 2) << answer.out;
      EXPECT_EQ(answer.err, "");
    }
    folder.file("step-000000000024/" + name, content);
  }
  EXPECT_EQ(Answer({"verify", folder.path()}).code, 0);
}

TEST(Plot, DrawsRuns) {
  const TemporaryFolder folder;
  for (const char* run : {"a", "b"}) {
    train::CsvLog log(str(folder / run, "/log.csv"));
    for (int epoch = 0; epoch < 3; ++epoch) log.write(epoch, {{"loss", 1.0 / (epoch + 1)}, {"accuracy", 0.5}});
  }
  const std::string out = folder / "curves.svg";
  const Answer answer({"plot", folder / "a", (folder / "b") + "/", "-o", out, "-t", "Digits", "-s", "0.5"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, out + ": 4 curves\n");
  const std::string svg = file_content(out);
  for (const char* part : {"<svg ", ">Digits<", ">a/log.csv · 0.3333<", ">b/log.csv · 0.3333<", "</svg>\n"})
    EXPECT_TRUE(contains(svg, part)) << part << svg;
  EXPECT_EQ(count(svg, "class=\"metric\""), 2);
  const Answer one({"plot", folder / "a", "-m", "loss", "-o", "-"});
  EXPECT_EQ(count(one.out, "class=\"metric\""), 1) << one.out;
}

TEST(FileCommands, NameMistakes) {
  const TemporaryFolder folder;
  const std::string log = folder.file("log.csv", "epoch,loss\n0,1\n");
  const struct {
    Strings arguments;
    int code;
    std::string text;
  } table[] = {
      {{"inspect"}, 2, "path is required"},
      {{"inspect", "/no/such"}, 4, "there is no file or folder /no/such"},
      {{"inspect", folder.path()}, 5, "has no checkpoints in it and no manifest.json"},
      {{"verify", "/no/such"}, 4, "there is no file or folder /no/such"},
      {{"plot"}, 2, "logs is required"},
      {{"plot", "/no/such"}, 4, "cannot read /no/such"},
      {{"plot", folder / "log.csv", "-s", "1"}, 2, "smoothing must be from 0 to 0.999, got 1"},
      {{"plot", log, "-m", "accuracy"}, 2, "no log has a metric 'accuracy'"},
      {{"plot", log, "-o", "/no/such/curves.svg"}, 4, "there is no folder /no/such"},
  };
  for (const auto& row : table) {
    const Answer answer(row.arguments);
    EXPECT_EQ(answer.code, row.code) << row.text;
    EXPECT_TRUE(contains(answer.err, row.text)) << answer.err;
  }
}

}  // namespace
}  // namespace lockstep
