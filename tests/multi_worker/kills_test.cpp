// Trainings that are killed at random moments, on 1 x 4, 2 x 2 and 4 x 1 replicas in turn, and always end with the same bits:
// 200 kills with LOCKSTEP_TEST_LONG=1, a few without. LOCKSTEP_TEST_SEED repeats a run.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "lockstep/base/text.h"
#include "tests/support/processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

struct Shape {
  int workers, replicas;
};
constexpr Shape kShapes[] = {{1, 4}, {2, 2}, {4, 1}};
constexpr seconds kLimit(300);  // for one training, on a busy machine

/// History, predictions, weights: a worker's final output.
std::string results_in(const std::string& text) {
  const std::size_t begin = text.find("history");
  return begin == text.npos ? "" : text.substr(begin);
}

/// Waits until all have ended. Returns their results if all of them finished the training: then they must be equal.
std::optional<std::string> results_of(Job& job) {
  std::optional<std::string> results;
  bool has_ended = true;
  for (int k = 0; k < job.size(); ++k) {
    const int status = job[k].wait(kLimit);
    EXPECT_TRUE(status == 0 || status == 1 || status == 1000 + SIGKILL) << status << " of worker " << k << ":\n"
                                                                        << job[k].output();
    has_ended &= status == 0;
    if (status != 0) continue;
    EXPECT_EQ(results_in(job[k].output()), results.value_or(results_in(job[k].output()))) << "worker " << k;
    results = results_in(job[k].output());
  }
  return has_ended ? results : std::nullopt;
}

Strings command(const Shape& shape, const TemporaryFolder& folder) {
  return {LOCKSTEP_FIT_PROGRAM, std::to_string(shape.replicas), "often", folder.path().string()};
}

bool is_being_saved(const TemporaryFolder& folder) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints", failed)) {
    if (entry.path().string().ends_with(".tmp")) return true;
  }
  return false;
}

TEST(Kills, AtRandomMomentsChangeNothing) {
  const char* const given = std::getenv("LOCKSTEP_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::stoul(given)) : std::random_device{}();
  SCOPED_TRACE(str("LOCKSTEP_TEST_SEED=", seed));
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };

  const TemporaryFolder whole;
  Job first(kShapes[0].workers, command(kShapes[0], whole));
  ASSERT_TRUE(first[0].prints("begins", kLimit)) << first[0].output();
  const double begun = now();
  const auto expected = results_of(first);
  ASSERT_TRUE(expected) << first[0].output();
  const int length = static_cast<int>(1000 * (now() - begun));  // the training's, in ms
  const std::string log = file_content(whole / "log.csv");

  const int wanted = std::getenv("LOCKSTEP_TEST_LONG") != nullptr ? 200 : 3;
  int kills = 0, in_saving = 0, ended = 0;
  const auto print = [&] {
    std::printf("%d kills, %d of them while a checkpoint was written; %d trainings came to their end\n", kills,
                in_saving, ended);
    std::fflush(stdout);
  };
  auto folder = std::make_unique<TemporaryFolder>();
  for (int run = 0; (kills < wanted || ended == 0) && !testing::Test::HasFailure(); ++run) {
    const Shape shape = kShapes[run % std::size(kShapes)];
    Job job(shape.workers, command(shape, *folder));
    if (kills < wanted) {
      ASSERT_TRUE(job[0].prints("begins", kLimit)) << "status " << job[0].wait(milliseconds(0)) << '\n'
                                                   << job[0].output();
      ::poll(nullptr, 0, below(length));
      const int victim = below(shape.workers);
      job[victim].signal(SIGKILL);
      in_saving += is_being_saved(*folder);
      if (below(2) == 0) {  // the others see it, or die too, a moment later
        for (int k = 0; k < shape.workers; ++k) {
          ::poll(nullptr, 0, below(10));
          job[k].signal(SIGKILL);
        }
      }
    }
    const auto results = results_of(job);
    if (!results) {
      if (++kills == wanted || kills % 20 == 0) print();
      continue;
    }
    EXPECT_EQ(*results, *expected) << "run " << run << " with " << shape.workers << " workers";
    EXPECT_EQ(file_content(*folder / "log.csv"), log);
    ++ended;
    folder = std::make_unique<TemporaryFolder>();
  }
}

}  // namespace
}  // namespace lockstep
