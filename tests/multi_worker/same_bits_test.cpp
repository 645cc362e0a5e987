#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace lockstep {
namespace {

/// W workers with R replicas each.
struct Layout {
  int workers;
  int replicas;
};

struct Trained {
  std::string losses;   ///< per epoch, as the chief prints them
  std::string weights;  ///< a digest
};

std::string lines_with(const std::string& start, const std::string& text) {
  std::istringstream in(text);
  std::string found;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(start, 0) == 0) found += line + "\n";
  }
  return found;
}

/// A worker's description of its weights: replicas are on a GPU if LOCKSTEP_TEST_DEVICES is gpu.
const char* const kDevices = std::getenv("LOCKSTEP_TEST_DEVICES");
const std::string kDevice = kDevices != nullptr && std::string(kDevices) == "gpu" ? "device cuda:0\n" : "device cpu\n";

/// How gradients are sent to other workers: LOCKSTEP_TEST_NCCL requests NCCL.
std::string expected_way(int workers) {
  const bool is_by_nccl = workers > 1 && std::getenv("LOCKSTEP_TEST_NCCL") != nullptr;
  return is_by_nccl ? "gradients by NCCL\n" : "gradients through the host\n";
}

/// Trains on the digits: dropout, shuffling, Adam, a short last batch, 3 epochs.
Trained train(const Layout& layout, const std::string& variant, const Strings& variables = {}) {
  Strings words{LOCKSTEP_TRAIN_PROGRAM, std::to_string(layout.replicas)};
  std::istringstream flags(variant);
  for (std::string flag; flags >> flag;) words.push_back(flag);
  Job job(layout.workers, words, variables);
  Trained chiefs;
  for (int k = 0; k < layout.workers; ++k) {
    EXPECT_EQ(job[k].wait(seconds(60)), 0) << "worker " << k << ":\n" << job[k].output();
    const std::string weights = lines_with("weights", job[k].output());
    if (variables.empty()) {
      EXPECT_EQ(lines_with("device", job[k].output()), kDevice) << "worker " << k;
    }
    EXPECT_EQ(lines_with("gradients", job[k].output()), expected_way(layout.workers)) << "worker " << k;
    EXPECT_FALSE(weights.empty()) << "worker " << k;
    EXPECT_FALSE(contains(job[k].output(), "AccumulateGrad")) << "LibTorch warns of a wrong stream:\n"
                                                              << job[k].output();
    if (k == 0) {
      chiefs = {lines_with("loss", job[k].output()), weights};
    } else {
      EXPECT_EQ(weights, chiefs.weights) << "worker " << k;
    }
  }
  return chiefs;
}

void expect_same_bits(const std::vector<Layout>& layouts, const std::string& variant) {
  const Trained first = train(layouts[0], variant);
  EXPECT_FALSE(first.losses.empty());
  for (std::size_t i = 1; i < layouts.size() && !testing::Test::HasFailure(); ++i) {
    const Trained other = train(layouts[i], variant);
    const auto name = [&](const Layout& layout) { return str(layout.workers, " x ", layout.replicas); };
    EXPECT_EQ(other.weights, first.weights) << name(layouts[i]) << " against " << name(layouts[0]);
    EXPECT_EQ(other.losses, first.losses) << name(layouts[i]) << " against " << name(layouts[0]);
  }
}

TEST(SameBits, FourReplicasAfterARestart) { expect_same_bits({{1, 4}, {1, 4}}, ""); }
TEST(SameBits, FourReplicasInAnyNumberOfProcesses) { expect_same_bits({{1, 4}, {2, 2}, {4, 1}}, ""); }
TEST(SameBits, SixReplicasInAnyNumberOfProcesses) { expect_same_bits({{1, 6}, {2, 3}, {3, 2}, {6, 1}}, ""); }

// names: configure
TEST(SameBits, AClientOfTowersSeesTheSameInAnyNumberOfProcesses) {
  Process alone({LOCKSTEP_TOWER_PROGRAM, "6"}, {});
  ASSERT_EQ(alone.wait(seconds(60)), 0) << alone.output();
  const std::string expected = lines_with("saw", alone.output());
  EXPECT_NE(expected, "");
  for (const Layout& layout : std::vector<Layout>{{1, 6}, {2, 3}, {3, 2}, {6, 1}}) {
    Job job(layout.workers, {LOCKSTEP_TOWER_PROGRAM, std::to_string(layout.replicas)});
    for (int k = 0; k < layout.workers; ++k) {
      EXPECT_EQ(job[k].wait(seconds(60)), 0) << "worker " << k << ":\n" << job[k].output();
      const std::string seen = lines_with("saw", job[k].output());
      EXPECT_EQ(seen, expected) << layout.workers << " x " << layout.replicas << ", worker " << k;
    }
    if (HasFailure()) break;
  }
}

struct SwappedCall {
  std::string name;
  std::string shown;  ///< part of the call in the error
  std::string error = "error[L110]";
};
void PrintTo(const SwappedCall& call, std::ostream* out) { *out << call.name; }

class SwappedTowerCalls : public testing::TestWithParam<SwappedCall> {};
TEST_P(SwappedTowerCalls, AreNoticedOnBothWorkers) {
  Job job(2, {LOCKSTEP_TOWER_PROGRAM, "1", GetParam().name});
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(job[k].wait(seconds(60)), 1) << "worker " << k << ":\n" << job[k].output();
    for (const std::string& part : {GetParam().error, GetParam().shown})
      EXPECT_NE(job[k].output().find(part), std::string::npos) << part << " in:\n" << job[k].output();
  }
}
INSTANTIATE_TEST_SUITE_P(SameBits, SwappedTowerCalls,
                         testing::Values(SwappedCall{"unwrap", "tower_mistakes.cpp:"},
                                         SwappedCall{"reduce", "tower_mistakes.cpp:"},
                                         SwappedCall{"map", "{lambda(int)#"}, SwappedCall{"update", "update with "},
                                         SwappedCall{"update_non_slot", "{lambda()#"},
                                         SwappedCall{"assign", "assign_add of variable 3 'u'"},
                                         SwappedCall{"aggregation", ", mean"}, SwappedCall{"slice", "'rows'["},
                                         SwappedCall{"output", "output \"a\""},
                                         SwappedCall{"call_for_each_tower", "function of the towers", "error[L102]"},
                                         SwappedCall{"merge_call", "functions of merge_call", "error[L102]"}),
                         [](const auto& each) { return each.param.name; });

TEST(SameBits, AReductionThatOneWorkerCannotMakeFailsOnAll) {
  Job job(2, {LOCKSTEP_TOWER_PROGRAM, "2", "unequal"});
  for (int k = 0; k < 2; ++k) {
    job[k].wait(seconds(60));
    EXPECT_NE(job[k].output().find("refused L"), std::string::npos) << "worker " << k << ":\n" << job[k].output();
    EXPECT_EQ(job[k].output().find("summed"), std::string::npos) << "worker " << k << ":\n" << job[k].output();
  }
}

TEST(SameBits, TheOwnerOfAnItemMakesNoCallsForAllWorkers) {
  Job job(2, {LOCKSTEP_TOWER_PROGRAM, "2", "owners"});
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(job[k].wait(seconds(60)), 0) << "worker " << k << ":\n" << job[k].output();
    for (const char* what : {"refused a write", "refused a read of all"})
      EXPECT_NE(job[k].output().find(what), std::string::npos) << what << ", worker " << k << ":\n" << job[k].output();
  }
}

/// On CPUs it is AUTO; between GPUs the order is NCCL's own, and only the workers' agreement is certain.
TEST(SameBits, NcclThatIsAskedForKeepsWorkersAlike) {
  const Trained asked = train({2, 2}, "nccl");
  EXPECT_FALSE(asked.losses.empty());
  if (std::getenv("LOCKSTEP_TEST_NCCL") != nullptr) return;
  EXPECT_EQ(asked.weights, train({1, 4}, "").weights);
}

class Variant : public testing::TestWithParam<std::string> {};
TEST_P(Variant, HasTheBitsOfOneProcess) { expect_same_bits({{1, 4}, {2, 2}, {4, 1}}, GetParam()); }
INSTANTIATE_TEST_SUITE_P(SameBits, Variant, testing::Values("clip", "sparse", "batch_norm"),
                         [](const auto& each) { return each.param; });

class RareVariant : public testing::TestWithParam<std::string> {};
TEST_P(RareVariant, HasTheBitsOfOneProcess) { expect_same_bits({{1, 6}, {3, 2}}, GetParam()); }
INSTANTIATE_TEST_SUITE_P(SameBits, RareVariant, testing::Values("accumulate", "scaler", "several_backwards"),
                         [](const auto& each) { return each.param; });

struct Copies {
  std::string name;
  std::string options;  ///< options of both programs
  std::string apart;    ///< options of the one with several copies
};
void PrintTo(const Copies& copies, std::ostream* out) { *out << copies.name; }

/// Each replica has a copy of the weights, as on several devices of a worker.
class CopiesOfWeights : public testing::TestWithParam<Copies> {};
TEST_P(CopiesOfWeights, OnEachWorkerHaveTheBitsOfOne) {
  const auto& [name, options, apart] = GetParam();
  const Trained one = train({1, 4}, options), several = train({2, 2}, options + " " + apart);
  EXPECT_EQ(several.weights, one.weights);
  EXPECT_EQ(several.losses, one.losses);
}
INSTANTIATE_TEST_SUITE_P(SameBits, CopiesOfWeights,
                         testing::Values(Copies{"WithinReach", "clip", "apart"},
                                         Copies{"OutOfReach", "", "apart out_of_reach"},
                                         Copies{"SparseOutOfReach", "sparse", "apart out_of_reach"},
                                         Copies{"OnCpusAndGpus", "batch_norm", "apart mixed"},
                                         Copies{"SparseOnCpusAndGpus", "sparse", "apart mixed"},
                                         Copies{"ScaledWithinReach", "scaler", "apart"},
                                         Copies{"AccumulatedOutOfReach", "accumulate", "apart out_of_reach"},
                                         Copies{"BackwardTwiceOnCpusAndGpus", "several_backwards", "apart mixed"}),
                         [](const auto& each) { return each.param.name; });

#ifdef LOCKSTEP_TEST_ON_GPUS
std::vector<double> numbers_of(const std::string& losses) {
  std::istringstream in(losses);
  std::vector<double> numbers;
  for (std::string word; in >> word;) {
    if (word != "loss") numbers.push_back(std::strtod(word.c_str(), nullptr));
  }
  return numbers;
}

/// Owners of the same weights are on other devices there, which round differently.
TEST(CpusAndGpus, OfEachWorkerTrainLikeThoseOfOneProcess) {
  if (kDevices == nullptr) GTEST_SKIP() << "needs a GPU: LOCKSTEP_TEST_DEVICES=gpu";
  for (const std::string devices : {"LOCKSTEP_TEST_DEVICES=gpu_first", "LOCKSTEP_TEST_DEVICES=cpu_first"}) {
    for (const std::string options : {"", "clip", "sparse", "batch_norm"}) {
      const auto one = numbers_of(train({1, 4}, options, {devices}).losses);
      const auto two = numbers_of(train({2, 2}, options, {devices}).losses);
      ASSERT_EQ(one.size(), 3u);
      ASSERT_EQ(two.size(), 3u);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(two[i], one[i], 2e-3 * one[i]) << devices << " " << options << ", epoch " << i;
    }
  }
}
#endif

}  // namespace
}  // namespace lockstep
