#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/test_support.h"

namespace lockstep::data {
namespace {

// To see whether a function opens files it is called with one element. Reading more of them could take as long as an
// epoch: here a line behind the first ones cannot be read at all, and nobody must notice.
TEST(FunctionLook, ReadsNoMoreThanOneElement) {
  const TempDir folder;
  std::string names;
  for (int i = 0; i < 10; ++i) names += "part-" + std::to_string(i) + "\n";
  names += std::string(1000, 'x') + "\n";
  const auto lines = TextLineDataset(folder.file("names", names), {.max_line_bytes = 100});
  const auto reader = [](const std::string& file) { return TFRecordDataset(file); };
  const auto is_seen = [](const StagePtr& stage) { return describe_pipeline(stage, true).root.function_reads_files; };
  EXPECT_TRUE(is_seen(lines.flat_map(reader).stage()));
  EXPECT_TRUE(is_seen(lines.shuffle(1000).flat_map(reader).stage()));
  EXPECT_TRUE(is_seen(lines.shuffle(1000).prefetch(100).repeat().interleave(reader).stage()));
  const auto first = [](const std::string& file, const at::Tensor&) { return TFRecordDataset(file); };
  EXPECT_TRUE(is_seen(zip(lines.shuffle(1000), range(100).shuffle(10)).flat_map(first).stage()));
  const auto of_batch = [](const Strings& files) { return TFRecordDataset(files.values()); };
  EXPECT_TRUE(is_seen(lines.shuffle(1000).batch(2).flat_map(of_batch).stage()));
}

}  // namespace
}  // namespace lockstep::data
