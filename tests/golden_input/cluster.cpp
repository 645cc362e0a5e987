#include "tests/golden_input/cluster.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/golden_input/values.h"

namespace lockstep::golden_input {
namespace {

/// Sums the workers' reports for each step. A worker that has left contributes nothing. A failure to read a step is not
/// reported to the others, who would stop too: the golden cases define which workers fail by themselves.
class Meeting {
 public:
  explicit Meeting(std::size_t workers) : present_(workers) {}

  data::StepTotals total(const data::StepTotals& brought) {
    std::unique_lock lock(mutex_);
    sum_.values += brought.values;
    sum_.helpless += brought.helpless;
    const std::uint64_t mine = round_;
    if (++arrived_ == present_) {
      finish();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != mine; })) {
      throw std::runtime_error("a worker did not come to the meeting within 60 s");
    }
    return result_;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    --present_;
    if (present_ > 0 && arrived_ == present_) finish();
  }

 private:
  void finish() {
    result_ = std::exchange(sum_, {});
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t present_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  data::StepTotals sum_, result_;
};

WorkerRun run_worker(data::DistributedInput input, std::optional<int> max_steps) {
  WorkerRun run;
  try {
    data::DistributedCursor cursor(std::make_shared<const data::DistributedInput>(std::move(input)));
    while (!max_steps || std::ssize(run.steps) < *max_steps) {
      const auto values = cursor.next();
      if (!values) break;
      json step = json::array();
      for (const data::Element& value : *values) step.push_back(write(value));
      run.steps.push_back(std::move(step));
    }
  } catch (...) {
    run.error = current_error();
  }
  return run;
}

}  // namespace

std::vector<WorkerRun> run_workers(const std::vector<data::DistributedInput>& inputs, std::optional<int> max_steps) {
  const auto meeting = std::make_shared<Meeting>(inputs.size());
  std::vector<WorkerRun> runs(inputs.size());
  std::vector<std::thread> workers;
  for (std::size_t w = 0; w < inputs.size(); ++w) {
    workers.emplace_back([&, w] {
      data::DistributedInput input = inputs[w];
      if (input.agreement)
        input.agreement = [meeting](const data::StepTotals& mine) {
          return [meeting, mine] { return meeting->total(mine); };
        };
      runs[w] = run_worker(std::move(input), max_steps);
      meeting->leave();
    });
  }
  for (std::thread& worker : workers) worker.join();
  return runs;
}

}  // namespace lockstep::golden_input
