#include "lockstep/base/remembered_replicas.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

const TuneKey kTrain{.program = "/home/me/my train", .cpu = "A CPU", .cores = 8};

TEST(RememberedReplicas, AreOfOneProgramCpuAndNumberOfCores) {
  std::string text = with_replicas("", kTrain, 4);
  EXPECT_EQ(text, "4\t8\tA CPU\t/home/me/my train\n");
  TuneKey other = kTrain;
  other.cores = 16;
  EXPECT_EQ(find_replicas(text, other), std::nullopt);
  text = with_replicas(text, other, 2);
  EXPECT_EQ(find_replicas(text, kTrain), 4);
  EXPECT_EQ(find_replicas(text, other), 2);
  text = with_replicas(text, kTrain, 1);
  EXPECT_EQ(find_replicas(text, kTrain), 1);
  EXPECT_EQ(find_replicas(text, other), 2);
  other.cpu = "Another CPU";
  EXPECT_EQ(find_replicas(text, other), std::nullopt);
  EXPECT_EQ(find_replicas(text, {.program = "train", .cpu = "A CPU", .cores = 8}), std::nullopt);
}

TEST(RememberedReplicas, LinesThatCannotBeReadAreNoKeys) {
  for (const char* text : {"", "\n\n", "x\t8\tA CPU\t/home/me/my train\n", "0\t8\tA CPU\t/home/me/my train\n",
                           "2000000000\t8\tA CPU\t/home/me/my train\n", "4\n"})
    EXPECT_EQ(find_replicas(text, kTrain), std::nullopt) << text;
  EXPECT_EQ(find_replicas(with_replicas("nonsense\n4", kTrain, 2), kTrain), 2);
}

TEST(RememberedReplicas, SurviveTheProcessInTheCacheFolder) {
  const TemporaryFolder folder;
  ::setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  EXPECT_EQ(remembered_replicas(kTrain), std::nullopt);
  remember_replicas(kTrain, 4);
  EXPECT_EQ(remembered_replicas(kTrain), 4);
  EXPECT_EQ(file_content(folder / "cache/lockstep/replicas"), "4\t8\tA CPU\t/home/me/my train\n");
  ::setenv("XDG_CACHE_HOME", folder.file("file", "").c_str(), 1);
  EXPECT_THROW(remember_replicas(kTrain, 4), FailedPrecondition);
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(RememberedReplicas, KeyIsAGivenNameOrThePathOfThisProgram) {
  EXPECT_EQ(program_key("small net"), "small net");
  EXPECT_TRUE(program_key("").starts_with('/')) << program_key("");
  EXPECT_TRUE(program_key("").ends_with("/base_tune_test")) << program_key("");
  EXPECT_EQ(key_here("x").cores, usable_cores());
}

}  // namespace
}  // namespace lockstep
