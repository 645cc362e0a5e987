#include "lockstep/data/stage_meter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include "lockstep/base/cores.h"
#include "lockstep/data/iterators.h"
#include "lockstep/data/stage_counters.h"

namespace lockstep::data {
namespace {

double seconds(const std::atomic<std::int64_t>& nanoseconds) {
  return static_cast<double>(nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
}

bool gives_batches(const Stage& stage) {
  const StageTraits::Rows rows = stage.traits().rows;
  if (rows != StageTraits::Rows::AsInput || stage.inputs().size() != 1) return rows == StageTraits::Rows::Many;
  return gives_batches(*stage.input());
}

class MeteredIterator final : public OneToOneIterator {
 public:
  MeteredIterator(IteratorPtr measured, std::shared_ptr<StageCounters> counters, bool batches)
      : OneToOneIterator(std::move(measured)), counters_(std::move(counters)), batches_(batches) {}

  bool next(Element& element) override {
    const auto begun = counters_->begin_request();
    const bool more = input_->next(element);
    const std::int64_t rows = more && batches_ ? rows_for_reports(element) : 1;
    counters_->end_request(begun, more ? std::optional(rows) : std::nullopt);
    return more;
  }

 private:
  std::shared_ptr<StageCounters> counters_;
  bool batches_;
};

/// Whether a stage's inputs run on their own threads, so that its time does not include theirs.
bool has_own_threads(const std::string& kind) { return kind == "prefetch" || kind == "parallel_map"; }

/// Whether a stage's inputs keep running while its consumer is busy.
bool reads_ahead(const StageReportLine& line) {
  return line.kind == "prefetch" || (line.kind == "distribute" && line.buffer_fill >= 0);
}

/// How to make the last stage read ahead.
std::string reading_ahead(const StageReportLine& last) {
  return last.kind == "distribute" ? "choose a per_replica_buffer_size of 1 or more" : "put prefetch(2) at the end";
}

/// Whether a stage computes while its consumer is busy: on its own threads, or a higher stage's.
bool runs_beside_consumer(const StageReport& report, std::size_t stage) {
  int depth = report.stages[stage].depth + 1;
  for (std::size_t i = stage + 1; i-- > 0;) {
    if (report.stages[i].depth >= depth) continue;  // an input of a stage in between
    depth = report.stages[i].depth;
    if (has_own_threads(report.stages[i].kind) || reads_ahead(report.stages[i])) return true;
  }
  return false;
}

std::string advice_for(const StageReport& report, const StageReportLine& slowest, int cores) {
  if (slowest.kind == "map" || slowest.kind == "parallel_map") {
    const int calls = std::max(1, slowest.parallel_calls);
    const int wanted = std::min(2 * calls, cores);
    if (wanted > calls) return str(": try ", wanted, " parallel calls");
    return str(": it uses all that ", counted(cores, "core"), " can give, make the function faster");
  }
  if (!reads_ahead(report.stages.front())) return str(": ", reading_ahead(report.stages.front()));
  if (slowest.kind == "flat_map") return ": try interleave with parallel calls";
  return "";
}

}  // namespace

IteratorPtr make_metered_iterator(IteratorPtr measured, const Stage& stage, std::shared_ptr<StageCounters> counters) {
  return std::make_unique<MeteredIterator>(std::move(measured), std::move(counters), gives_batches(stage));
}

std::string hint_for(const StageReport& report, int cores) {
  if (report.stages.empty() || report.seconds <= 0) return "nothing was read";
  const double waiting = report.stages.front().waiting_s;
  const std::string waited = str("waited ", std::lround(100 * waiting / report.seconds), " % of the time");
  if (waiting < 0.1 * report.seconds) return str("the consumer is the bound: it ", waited);
  const auto per_thread = [](const StageReportLine& line) { return line.busy_s / std::max(1, line.parallel_calls); };
  const auto slowest = std::ranges::max_element(report.stages, {}, per_thread);
  const auto index = static_cast<std::size_t>(slowest - report.stages.begin());
  const bool beside = runs_beside_consumer(report, index);
  // A stage that runs in parallel to the consumer and is mostly idle cannot be what holds it up.
  const bool is_bound = per_thread(*slowest) >= 0.5 * (beside ? std::max(waiting, report.seconds) : waiting);
  if (is_bound) return str("bound by ", slowest->name, advice_for(report, *slowest, cores));
  const StageReportLine& last = report.stages.front();
  return str("no single stage is the bound: the consumer ", waited, "; ",
             reads_ahead(last) ? "parallel calls or a larger prefetch may help" : reading_ahead(last));
}

struct StageMeter::Kept {
  std::mutex mutex;
  std::map<std::weak_ptr<const void>, std::shared_ptr<StageCounters>, std::owner_less<>> by_owner;
  std::vector<std::shared_ptr<StageCounters>> in_order;
};

StageMeter::StageMeter() : kept_(std::make_shared<Kept>()) {}
StageMeter::~StageMeter() = default;

std::shared_ptr<StageCounters> StageMeter::counters_of(const std::shared_ptr<const void>& key, StageReportLine line,
                                                       StageCounters* above) {
  const std::lock_guard lock(kept_->mutex);
  std::shared_ptr<StageCounters>& counters = kept_->by_owner[key];
  if (!counters) {
    line.depth = above ? above->line.depth + 1 : 0;
    counters = std::make_shared<StageCounters>();
    counters->line = std::move(line);
    counters->above = above;
    kept_->in_order.push_back(counters);
  }
  return counters;
}

StageReport StageMeter::report() const {
  const std::lock_guard lock(kept_->mutex);
  StageReport report;
  // Stages are counted from the source, as in the program; they were started from the end.
  std::map<std::string, int> numbers;
  std::vector<std::string> names(kept_->in_order.size());
  for (std::size_t i = kept_->in_order.size(); i-- > 0;) {
    const StageReportLine& line = kept_->in_order[i]->line;
    const std::string kind = line.kind == "parallel_map" ? "map" : line.kind;
    names[i] = str(kind, " #", ++numbers[kind], line.name.empty() ? "" : " (" + line.name + ")");
  }
  const std::int64_t now = std::chrono::nanoseconds(StageCounters::Clock::now().time_since_epoch()).count();
  std::int64_t start = now;
  for (const auto& stage : kept_->in_order)
    if (const std::int64_t first = stage->first_asked_ns.load(); first > 0) start = std::min(start, first);
  report.seconds = static_cast<double>(now - start) * 1e-9;
  for (const auto& stage : kept_->in_order) {
    StageReportLine line = stage->line;
    line.name = names[report.stages.size()];
    line.elements = stage->elements.load();
    line.rows = stage->rows.load();
    line.rows_per_s = report.seconds > 0 ? static_cast<double>(line.rows) / report.seconds : 0;
    line.waiting_s = seconds(stage->asked_ns);
    double inputs = 0;
    for (const auto& other : kept_->in_order)
      if (other->above == stage.get()) inputs += seconds(other->asked_ns);
    if (line.kind == "parallel_map")
      line.busy_s = seconds(stage->computing_ns);
    else if (line.kind == "distribute")  // on its own thread, or its reader's
      line.busy_s = std::max(0.0, seconds(stage->computing_ns) - inputs);
    else if (!has_own_threads(line.kind))
      line.busy_s = std::max(0.0, line.waiting_s - inputs);
    const std::int64_t requests = stage->requests.load();
    if (requests > 0)
      line.buffer_fill = static_cast<double>(stage->buffered.load()) /
                         static_cast<double>(requests * std::max<std::int64_t>(1, stage->buffer_size.load()));
    report.stages.push_back(std::move(line));
  }
  report.hint = hint_for(report, usable_cores());
  return report;
}

std::string to_string(const StageReport& report) {
  std::size_t width = 5;
  for (const StageReportLine& line : report.stages)
    width = std::max(width, line.name.size() + 2 * static_cast<std::size_t>(line.depth));
  std::string text = "stage" + std::string(width - 5, ' ') + "   elements      rows/s    busy s  waited s  buffer\n";
  for (const StageReportLine& line : report.stages) {
    std::string name = std::string(2 * static_cast<std::size_t>(line.depth), ' ') + line.name;
    name.resize(width, ' ');
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, " %10lld %11.0f %9.3f %9.3f", static_cast<long long>(line.elements),
                  line.rows_per_s, line.busy_s, line.waiting_s);
    text += name + numbers;
    if (line.buffer_fill >= 0) {
      std::snprintf(numbers, sizeof numbers, " %5.0f %%", 100 * line.buffer_fill);
      text += numbers;
    }
    text += "\n";
  }
  return text + report.hint + "\n";
}

}  // namespace lockstep::data
