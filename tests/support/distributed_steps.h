#pragma once

#include <ATen/core/TensorBody.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/distributed_cursor.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/data/pipeline_iterator.h"

// Distributed datasets of numbers as lists of lists, and a reference for how batches are cut: as plain as possible.
namespace lockstep::data {

using Rows = std::vector<std::int64_t>;
using Step = std::vector<Rows>;  // one list of rows per replica
using Steps = std::vector<Step>;

/// A temporary folder, removed at the end.
class Folder {
 public:
  explicit Folder(const char* name)
      : path_(std::filesystem::temp_directory_path() / str("lockstep_", name, '_', ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline const IterationContext kContext{.job_seed = 42, .epoch = 3};

/// The text of the error thrown by `f`; empty if none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline Rows rows_in(const Element& element) {
  const at::Tensor& tensor = element.tensor(0);
  Rows rows;
  for (std::int64_t i = 0; i < tensor.size(0); ++i) rows.push_back(tensor[i].item().toLong());
  return rows;
}

inline std::vector<Rows> batches_of(const StagePtr& dataset) {
  std::vector<Rows> batches;
  PipelineIterator iterator(dataset, kContext);
  Element element;
  while (iterator.next(element)) batches.push_back(rows_in(element));
  return batches;
}

/// The agreement of workers that meet in `meeting->total(mine)`.
template <class Meeting>
Agreement agreement_by(std::shared_ptr<Meeting> meeting) {
  return [meeting = std::move(meeting)](const StepTotals& mine) {
    return [meeting, mine] { return meeting->total(mine); };
  };
}

inline std::shared_ptr<const DistributedInput> input_of(const InputPlan& plan, int buffer,
                                                        Agreement agreement = nullptr) {
  DistributedInput input = distributed_by_plan(plan);
  input.buffer_size = buffer;
  input.job_seed = kContext.job_seed;
  input.passes->store(kContext.epoch);
  if (agreement && input.agreement) input.agreement = std::move(agreement);
  return std::make_shared<const DistributedInput>(std::move(input));
}

/// The totals of all workers as if they had met: how many of their replicas have data in each step.
class KnownTotals {
 public:
  KnownTotals(std::vector<std::int64_t> totals, std::size_t step) : totals_(std::move(totals)), step_(step) {}
  StepTotals total(const StepTotals&) { return {.values = step_ < totals_.size() ? totals_[step_++] : 0}; }

 private:
  std::vector<std::int64_t> totals_;
  std::size_t step_;
};

/// For the workers whose steps `make_source(worker)` reads.
template <class MakeSource>
std::vector<std::int64_t> totals_of_workers(int workers, MakeSource&& make_source) {
  std::vector<std::int64_t> totals;
  for (int worker = 0; worker < workers; ++worker) {
    const std::unique_ptr<StepSource> source = make_source(worker);
    for (std::size_t s = 0;; ++s) {
      const int values = source->next().local_values();
      if (values == 0) break;
      if (s == totals.size()) totals.push_back(0);
      totals[s] += values;
    }
  }
  return totals;
}

/// A pass that continues from `state`.
inline DistributedCursor resume_cursor(DistributedInputPtr input, const IteratorState& state,
                                       std::shared_ptr<StageMeter> meter = nullptr) {
  DistributedCursor cursor(std::move(input), {.meter = std::move(meter)});
  cursor.load_state(state);
  return cursor;
}

inline Step step_of(const DistributedCursor::Values& values) {
  Step step;
  for (const Element& value : values) step.push_back(rows_in(value));
  return step;
}

inline Steps read_all(DistributedCursor& cursor) {
  Steps steps;
  while (const auto values = cursor.next()) steps.push_back(step_of(*values));
  return steps;
}

/// The results of `next` until the end, failures as empty lists; at most `limit` of them.
inline Steps read_with_failures(DistributedCursor& cursor, std::size_t limit = 2000) {
  Steps seen;
  while (seen.size() < limit) {
    try {
      const auto values = cursor.next();
      if (!values) return seen;
      seen.push_back(step_of(*values));
    } catch (const std::exception&) {
      seen.emplace_back();
    }
  }
  return seen;
}

/// One worker's steps, from the steps of all replicas.
inline Steps of_worker(const Steps& all, const ClusterShape& cluster, std::size_t from = 0) {
  Steps own;
  for (std::size_t s = from; s < all.size(); ++s) {
    const auto begin = all[s].begin() + cluster.worker * cluster.replicas_per_worker;
    own.emplace_back(begin, begin + cluster.replicas_per_worker);
  }
  return own;
}

inline Rows some_of(const Rows& rows, std::size_t begin, std::size_t end) {
  return {rows.begin() + static_cast<std::ptrdiff_t>(std::min(begin, rows.size())),
          rows.begin() + static_cast<std::ptrdiff_t>(std::min(end, rows.size()))};
}

/// Each batch in as many pieces as there are replicas.
inline std::vector<Rows> ceil_pieces(const std::vector<Rows>& batches, std::size_t replicas) {
  std::vector<Rows> pieces;
  for (const Rows& batch : batches) {
    const std::size_t interval = (batch.size() + replicas - 1) / replicas;
    for (std::size_t k = 0; k < replicas; ++k) pieces.push_back(some_of(batch, k * interval, (k + 1) * interval));
  }
  return pieces;
}

/// Each batch in as many pieces as there are replicas, which get the rows in turn.
inline std::vector<Rows> even_pieces(const std::vector<Rows>& batches, std::size_t replicas) {
  std::vector<Rows> pieces;
  for (const Rows& batch : batches) {
    std::vector<std::size_t> sizes(replicas, 0);
    for (std::size_t row = 0; row < batch.size(); ++row) ++sizes[row % replicas];
    std::size_t next = 0;
    for (const std::size_t size : sizes) {
      pieces.push_back(some_of(batch, next, next + size));
      next += size;
    }
  }
  return pieces;
}

/// All rows in pieces whose sizes repeat cyclically, starting with replica `first`.
inline std::vector<Rows> balanced_pieces(const std::vector<Rows>& batches, std::size_t batch_size, std::size_t replicas,
                                         std::size_t first = 0) {
  Rows stream;
  for (const Rows& batch : batches) stream.insert(stream.end(), batch.begin(), batch.end());
  std::vector<Rows> pieces;
  std::size_t next = 0;
  for (std::size_t k = first;; k = (k + 1) % replicas) {
    const std::size_t size = batch_size / replicas + (k < batch_size % replicas ? 1 : 0);
    if (size > 0 && next == stream.size()) return pieces;
    pieces.push_back(some_of(stream, next, next + size));
    next += size;
    if (next > stream.size()) return pieces;
  }
}

/// Pieces in steps of one per replica; those missing from the last step are empty, or the step is dropped.
inline Steps dealt(const std::vector<Rows>& pieces, std::size_t replicas, bool partial_steps) {
  Steps steps;
  for (std::size_t begin = 0; begin < pieces.size(); begin += replicas) {
    if (begin + replicas > pieces.size() && !partial_steps) break;
    Step step(replicas);
    for (std::size_t k = 0; k < replicas && begin + k < pieces.size(); ++k) step[k] = pieces[begin + k];
    steps.push_back(step);
  }
  return steps;
}

/// One way to each of the rules by which batches are cut.
struct WayToCut {
  AutoShardPolicy policy;
  Assignment assignment;
};
inline constexpr WayToCut kWaysToCut[] = {{AutoShardPolicy::Auto, Assignment::ByReplica},
                                          {AutoShardPolicy::Data, Assignment::TensorFlow},
                                          {AutoShardPolicy::Off, Assignment::TensorFlow}};
inline std::string to_string(const WayToCut& way) {
  return str(lockstep::to_string(way.policy), ", ", lockstep::to_string(way.assignment));
}

inline std::vector<Rows> pieces_by_rule(const std::vector<Rows>& batches, SplitRule rule, std::int64_t batch_size,
                                        int replicas, int first = 0) {
  if (rule == SplitRule::None) return batches;
  if (rule == SplitRule::Even) return even_pieces(batches, static_cast<std::size_t>(replicas));
  if (rule == SplitRule::CeilSplit) return ceil_pieces(batches, static_cast<std::size_t>(replicas));
  return balanced_pieces(batches, static_cast<std::size_t>(batch_size), static_cast<std::size_t>(replicas),
                         static_cast<std::size_t>(first));
}

}  // namespace lockstep::data
