#include "lockstep/strategy/suggest_replicas.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <numeric>
#include <ostream>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/remembered_replicas.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_report.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep {
namespace {

/// Counts the rows that are given to `run`, and notes the threads of a replica.
class RowsOfRuns final : public detail::RunWatcher {
 public:
  void prepare() const override {}
  void begin(std::size_t k) const override {
    if (k != 0) return;
    const auto& here = detail::current_context()->notes->rows.here;
    rows = std::accumulate(here.begin(), here.end(), rows);
    threads = at::get_num_threads();
  }
  void remember(std::size_t) const override {}
  void require_untouched(std::size_t) const override {}
  void end_of_merge() const override {}
  void end() const override {}

  mutable std::int64_t rows = 0;
  mutable int threads = 1;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

ReplicaMeasurement measure(int replicas, double seconds,
                           const std::function<std::function<void()>(MirroredStrategy&)>& make_step) {
  constexpr int kRounds = 3;
  MirroredStrategy strategy({.devices = cpus(replicas)});
  const auto seen = std::make_shared<RowsOfRuns>();
  detail::StrategyAccess::runs(strategy).watch(seen);
  const std::function<void()> step = make_step(strategy);
  ReplicaMeasurement measured{.replicas = replicas};
  for (int round = 0; round < kRounds; ++round) {
    std::vector<TunedStep> steps;
    const auto round_begun = Clock::now();
    // Asked for enough steps only once the time is over: that looks at all of them.
    while (seconds_since(round_begun) < seconds / kRounds || !are_enough(steps, 0)) {
      seen->rows = 0;
      const auto begun = Clock::now();
      step();
      steps.push_back({seconds_since(begun), seen->rows});
    }
    const TunedStep middle = median_step(steps);
    measured.rounds.push_back(middle.seconds);
    measured.rows = middle.rows;
  }
  measured.threads = seen->threads;
  return measured;
}

}  // namespace

std::vector<std::string> best_cpus(const BestCpusOptions& options) {
  if (options.otherwise < 1) {
    throw InvalidArgument(errors::kBadOption, {.what = str("otherwise must be >= 1, got ", options.otherwise),
                                               .where = "best_cpus",
                                               .help = "leave it out for one replica"});
  }
  const std::string program = program_key(options.name);
  if (const TuneRequest* const request = tune_request()) {
    note_program_key(program);
    return cpus(request->replicas);
  }
  const auto found = remembered_replicas(key_here(program));
  const int replicas = found.value_or(options.otherwise);
  say_info(str(counted(replicas, "replica"), " on CPUs: ", found ? "remembered for " : "none is remembered for ",
               program,
               found ? " on this CPU" : "; `lockstep tune --remember -- PROGRAM` measures which number is fastest"));
  return cpus(replicas);
}

ReplicaSuggestion suggest_replicas(const std::function<std::function<void()>(MirroredStrategy&)>& make_step,
                                   const SuggestOptions& options) {
  if (const TuneRequest* const request = tune_request())
    return {request->replicas, "chosen by lockstep tune, which is measuring"};
  if (!(options.seconds > 0) || std::ranges::any_of(options.replicas, [](int n) { return n < 1; })) {
    throw InvalidArgument(errors::kBadOption, {.what = "seconds must be > 0 and replicas >= 1",
                                               .where = "suggest_replicas",
                                               .help = "leave them out: 1, 2, 4, ... replicas, 2 seconds for each"});
  }
  const RngSnapshot before(shared_generators_of({at::kCPU}));
  ReplicaSuggestion suggestion;
  std::exception_ptr failure;
  for (const int n : options.replicas.empty() ? plan_replicas(usable_cores()) : options.replicas) {
    try {
      suggestion.measured.push_back(measure(n, options.seconds, make_step));
    } catch (const std::exception& error) {  // with so many replicas some may have no rows, for instance
      failure = std::current_exception();
      const std::string text = error.what();
      suggestion.measured.push_back({.replicas = n, .not_measured = text.substr(0, text.find('\n'))});
    }
  }
  before.restore();
  const SharedGenerator seen;  // restoring is not seeding
  const auto is_measured = [](const ReplicaMeasurement& one) { return !one.rounds.empty(); };
  if (failure && std::ranges::none_of(suggestion.measured, is_measured)) std::rethrow_exception(failure);
  ReplicaChoice choice = choose_replicas(suggestion.measured);
  suggestion.replicas = choice.replicas;
  suggestion.why = std::move(choice.why);
  return suggestion;
}

std::ostream& operator<<(std::ostream& out, const ReplicaSuggestion& suggestion) {
  return out << table_of(suggestion.measured) << "best: " << suggestion.why << '\n';
}

}  // namespace lockstep
