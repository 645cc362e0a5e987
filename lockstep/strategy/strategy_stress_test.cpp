#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/sanitizers.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/watchdog.h"

// Thousands of random programs through the public interface. Each is a script that all replicas follow, and a fault;
// how it ends is known beforehand, and afterwards nothing may be left: no tensor, no thread, no memory.
namespace lockstep {
namespace {

enum class Step { AllReduce, AllGather, Merge, NestedRun, Assign, Backward };
constexpr int kSteps = 6;

enum class Fault {
  None,
  Throws,           ///< one replica throws
  ThrowsInMerge,    ///< the merge function does
  ThrowsInNested,   ///< one replica of a run inside a merge function does
  Leaves,           ///< one replica returns while the others go on
  Disagrees,        ///< one replica brings another shape
  DisagreesCaught,  ///< and all of them go on after it
};
constexpr int kFaults = 7;

struct Script {
  std::vector<Step> steps;
  std::int64_t length;
  Fault fault;
  int culprit;
  std::size_t when;  ///< before this step
};

class Foretold : public std::runtime_error {
 public:
  Foretold() : std::runtime_error("foretold") {}
};

/// A strategy with a variable to assign to.
struct Stage {
  explicit Stage(int replicas) : strategy(on_devices(replicas)) {}
  MirroredStrategy strategy;
  Variable total = strategy.make_variable(at::zeros({}), {.aggregation = Aggregation::Sum});
};

using Watched = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>;

/// One replica's way through the script.
class Actor {
 public:
  Actor(const Script& script, Stage& stage, Watched& watched)
      : script_(script),
        stage_(stage),
        watched_(watched),
        id_(my_id()),
        count_(get_replica_context().num_replicas_in_sync()) {}

  at::Tensor play() {
    for (std::size_t i = 0; i <= script_.steps.size(); ++i) {
      if (i == script_.when && !survives_fault()) break;
      if (i < script_.steps.size()) take(script_.steps[i]);
    }
    return watch(at::full({}, id_));
  }

 private:
  /// False where this replica leaves.
  bool survives_fault() {
    const bool culprit = id_ == script_.culprit;
    switch (script_.fault) {
      case Fault::None: return true;
      case Fault::Throws:
        if (culprit) throw Foretold();
        return true;
      case Fault::ThrowsInMerge:
        replica().merge_call([](Strategy&, const PerReplica<at::Tensor>&) -> at::Tensor { throw Foretold(); },
                             watch(at::ones({3})));
        return true;
      case Fault::ThrowsInNested:
        replica().merge_call([culprit = script_.culprit](Strategy& s) {
          s.run([&] {
            if (my_id() == culprit) throw Foretold();
            get_replica_context().all_reduce(ReduceOp::Sum, at::ones({}));
          });
        });
        return true;
      case Fault::Leaves: return !culprit;
      case Fault::Disagrees:
      case Fault::DisagreesCaught: try { replica().all_reduce(ReduceOp::Sum, watch(at::ones({culprit ? 2 : 3})));
        } catch (const InvalidArgument&) {
          if (script_.fault == Fault::Disagrees) throw;
        }
        return true;
    }
    return true;
  }

  void take(Step step) {
    const float triangle = static_cast<float>(count_ * (count_ + 1)) / 2;
    const at::Tensor mine = watch(at::full({script_.length}, id_ + 1.0));
    switch (step) {
      case Step::AllReduce: {
        const at::Tensor sum = watch(replica().all_reduce(ReduceOp::Sum, mine));
        expect(sum[0], triangle);
        expect(sum[script_.length - 1], triangle);
        break;
      }
      case Step::AllGather:
        expect(at::full({}, watch(replica().all_gather(mine.slice(0, 0, 1).expand({id_ + 1}), 0)).size(0)), triangle);
        break;
      case Step::Merge:
        expect(watch(replica().merge_call(
                   [](Strategy& s, const PerReplica<at::Tensor>& x) { return s.reduce(ReduceOp::Sum, x); }, mine))[0],
               triangle);
        break;
      case Step::NestedRun:
        expect(replica().merge_call([](Strategy& s) {
          return s.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})); });
        }),
               static_cast<float>(count_));
        break;
      case Step::Assign: expect(stage_.total.assign(at::full({}, id_ + 1.0)).detach(), triangle); break;
      case Step::Backward: {
        at::Tensor x = watch(at::rand({4}).requires_grad_());
        watch(replica().all_reduce(ReduceOp::Sum, x.mul(2))).sum().backward();
        expect(x.grad()[0], 2 * static_cast<float>(count_));
        break;
      }
    }
  }

  static void expect(const at::Tensor& seen, float wanted) { EXPECT_EQ(seen.item<float>(), wanted); }
  static ReplicaContext& replica() { return get_replica_context(); }
  at::Tensor watch(at::Tensor tensor) {
    watched_.emplace_back(tensor.getIntrusivePtr());
    return tensor;
  }

  const Script& script_;
  Stage& stage_;
  Watched& watched_;
  int id_;
  int count_;
};

/// How the run of a script ends.
std::string outcome_of(const Script& script, Stage& stage) {
  std::vector<Watched> watched(static_cast<std::size_t>(stage.strategy.num_local_replicas()));
  std::string outcome = "well";
  try {
    const auto ids =
        stage.strategy.run([&] { return Actor(script, stage, watched[static_cast<std::size_t>(my_id())]).play(); });
    for (std::size_t k = 0; k < ids.size(); ++k) EXPECT_EQ(ids[k].item<float>(), static_cast<float>(k));
  } catch (const Foretold&) {
    outcome = "foretold";
  } catch (const Error& e) {
    outcome = lockstep::str("L", e.number());
  }
  for (const auto& tensors : watched) {
    for (const auto& tensor : tensors) EXPECT_TRUE(tensor.expired()) << "a tensor has outlived its run";
  }
  return outcome;
}

std::string foretold_outcome(const Script& script, int replicas) {
  switch (script.fault) {
    case Fault::None:
    case Fault::DisagreesCaught: return "well";
    case Fault::Throws:
    case Fault::ThrowsInMerge:
    case Fault::ThrowsInNested: return "foretold";
    case Fault::Leaves:
      return replicas > 1 && script.when < script.steps.size() ? lockstep::str("L", errors::kUnequalMeetings) : "well";
    case Fault::Disagrees: return replicas > 1 ? lockstep::str("L", errors::kShape) : "well";
  }
  return "";
}

/// A number from /proc/self/status: "VmRSS" in kB, "Threads".
long process_status(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::atol(line.c_str() + field.size() + 1);
  }
  return -1;
}

TEST(Stress, TenThousandRandomRunsEndAsForetoldAndLeaveNothingBehind) {
  const int runs = std::getenv("LOCKSTEP_TEST_LONG") != nullptr ? 100'000 : 10'000;
  const Watchdog watchdog(std::chrono::seconds(runs / 40), "the stress test");
  const LoggedLines quiet;
  std::mt19937 random(20240229);
  const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };

  const std::vector<int> sizes{1, 2, 3, 4, 7};
  std::vector<std::unique_ptr<Stage>> stages;
  for (const int replicas : sizes) stages.push_back(std::make_unique<Stage>(replicas));
  [[maybe_unused]] long memory = 0;
  at::ones({1}).requires_grad_().sum().backward();  // LibTorch starts a thread for each GPU
  const long threads = process_status("Threads");
  for (int round = 0; round < runs && !testing::Test::HasFailure(); ++round) {
    const auto chosen = static_cast<std::size_t>(pick(static_cast<int>(stages.size())));
    if (pick(200) == 0) stages[chosen] = std::make_unique<Stage>(sizes[chosen]);
    Script script{.steps = std::vector<Step>(static_cast<std::size_t>(pick(4))),
                  .length = pick(20) == 0 ? 20'000 : 1 + pick(50),
                  .fault = pick(2) == 0 ? Fault::None : static_cast<Fault>(pick(kFaults)),
                  .culprit = pick(sizes[chosen]),
                  .when = 0};
    std::ranges::generate(script.steps, [&] { return static_cast<Step>(pick(kSteps)); });
    script.when = static_cast<std::size_t>(pick(static_cast<int>(script.steps.size()) + 1));
    SCOPED_TRACE(lockstep::str("run ", round, ", ", sizes[chosen], " replicas, fault ", static_cast<int>(script.fault),
                               " of replica ", script.culprit));
    EXPECT_EQ(outcome_of(script, *stages[chosen]), foretold_outcome(script, sizes[chosen]));
    if (round == runs / 5) memory = process_status("VmRSS");
  }
  EXPECT_LE(process_status("Threads"), threads) << "threads were left behind";
#if !defined(LOCKSTEP_ADDRESS_SANITIZER)  // which keeps freed memory for a while, on purpose
  EXPECT_LT(process_status("VmRSS"), memory + 16 * 1024) << "memory was left behind";
#endif
}

}  // namespace
}  // namespace lockstep
