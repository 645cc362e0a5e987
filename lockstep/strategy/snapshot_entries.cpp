#include "lockstep/strategy/detail/snapshot_entries.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/print.h"

namespace lockstep::detail {
namespace {

/// Of the replicas of all workers; written beside the first entry by replica.
constexpr const char* kReplicas = "replicas";

[[noreturn]] void refuse_snapshot(const std::string& what, const std::string& seen, const std::string& help) {
  throw InvalidArgument(errors::kSavedState, {.what = what, .where = "restore", .seen = seen, .help = help});
}

template <class Entries, class Value>
void add_once(Entries& entries, const std::string& name, Value value) {
  if (entries.emplace(name, std::move(value)).second) return;
  throw InvalidArgument(errors::kBadOption, {.what = str("two parts of a snapshot have the entry '", name, "'"),
                                             .where = "capture",
                                             .help = "give each part of the training a name of its own"});
}

template <class Number>
bool parse(const std::string& text, Number& number) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc{} && end == text.data() + text.size();
}

template <class Number>
std::string exact_text(Number number) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  return {text, end};
}

}  // namespace

void require_between_runs(const Strategy& strategy, const char* operation) {
  const ContextEntry* top = current_context();
  if (top != nullptr && top->replica != nullptr) {
    throw FailedPrecondition(errors::kWrongContext,
                             {.what = str(operation, " belongs outside of the function given to strategy.run"),
                              .where = str("on replica ", top->replica->replica_id_in_sync_group()),
                              .help = str("call ", operation, " between two runs: it is for all replicas")});
  }
  if (!StrategyAccess::runs(strategy).are_elsewhere()) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = str(operation, " was called while another thread is inside strategy.run"),
                            .help = "call it between two runs, on the thread that runs them; another thread can write "
                                    "the snapshot to a file"});
}

std::string form_of(const at::Tensor& tensor) {
  return lockstep::str(dtype_name(tensor.scalar_type()), tensor.sizes());
}

void put_shared(Snapshot& into, const std::string& name, const at::Tensor& value) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  at::Tensor copy = at::empty(value.sizes(), at::TensorOptions().dtype(value.scalar_type()));
  copy.copy_(value);
  add_once(into.shared, name, std::move(copy));
}

void put_text(Snapshot& into, const std::string& name, std::string text) {
  add_once(into.texts, name, std::move(text));
}
void put_number(Snapshot& into, const std::string& name, double value) { put_text(into, name, exact_text(value)); }
void put_count(Snapshot& into, const std::string& name, std::int64_t value) { put_text(into, name, exact_text(value)); }

void put_by_replica(Snapshot& into, const Strategy& strategy, const std::string& name,
                    const std::vector<at::Tensor>& values) {
  into.texts[kReplicas] = str(strategy.num_replicas_in_sync());
  Snapshot copies;
  std::map<int, at::Tensor> entries;
  const int first = strategy.worker_id() * strategy.num_local_replicas();
  for (std::size_t k = 0; k < values.size(); ++k) {
    put_shared(copies, str(k), values[k]);
    entries.emplace(first + static_cast<int>(k), copies.shared.at(str(k)));
  }
  add_once(into.by_replica, name, std::move(entries));
}

void SnapshotReader::refuse(const std::string& entry, const std::string& what) const {
  refuse_snapshot(
      str("'", part_, "/", entry, "' of the snapshot does not fit: ", what), "",
      "restore into the same model, optimizer and dataset, made as they were when the snapshot was captured");
}

std::string SnapshotReader::name_of(const std::string& entry) {
  std::string name = str(part_, '/', entry);
  read_.insert(name);
  return name;
}

bool SnapshotReader::has_shared(const std::string& entry) const {
  return from_->shared.contains(str(part_, '/', entry));
}

const at::Tensor& SnapshotReader::shared(const std::string& entry) {
  const auto found = from_->shared.find(name_of(entry));
  if (found == from_->shared.end()) refuse(entry, "it is missing");
  return found->second;
}

const at::Tensor& SnapshotReader::shared(const std::string& entry, const at::Tensor& like) {
  const at::Tensor& value = shared(entry);
  if (value.sizes() != like.sizes() || value.scalar_type() != like.scalar_type())
    refuse(entry, str("it is ", form_of(value), ", the program's ", form_of(like)));
  return value;
}

const std::string& SnapshotReader::text(const std::string& entry) {
  const auto found = from_->texts.find(name_of(entry));
  if (found == from_->texts.end()) refuse(entry, "it is missing");
  return found->second;
}

double SnapshotReader::number(const std::string& entry) {
  double value = 0;
  if (!parse(text(entry), value)) refuse(entry, str("it must be a number, got '", text(entry), "'"));
  return value;
}

std::int64_t SnapshotReader::count(const std::string& entry) {
  std::int64_t value = -1;
  if (!parse(text(entry), value) || value < 0)
    refuse(entry, str("it must be a whole number >= 0, got '", text(entry), "'"));
  return value;
}

int SnapshotReader::replicas() const {
  const auto found = from_->texts.find(kReplicas);
  int value = 0;
  return found != from_->texts.end() && parse(found->second, value) ? value : 0;
}

bool SnapshotReader::fits(const Strategy& strategy) const { return replicas() == strategy.num_replicas_in_sync(); }

std::vector<at::Tensor> SnapshotReader::by_replica(const std::string& entry, const Strategy& strategy) {
  const auto found = from_->by_replica.find(name_of(entry));
  if (found == from_->by_replica.end()) refuse(entry, "it is missing");
  if (!fits(strategy)) {
    refuse(entry, str("it has a value for each of ", counted(replicas(), "replica"), ", and the strategy has ",
                      strategy.num_replicas_in_sync()));
  }
  std::vector<at::Tensor> mine;
  const int first = strategy.worker_id() * strategy.num_local_replicas();
  for (int k = first; k < first + strategy.num_local_replicas(); ++k) {
    const auto value = found->second.find(k);
    if (value == found->second.end()) {
      refuse_snapshot(str("'", part_, "/", entry, "' of the snapshot has no value for replica ", k), "",
                      "gather(strategy, snapshot) brings the values of all workers together before it is saved");
    }
    mine.push_back(value->second);
  }
  return mine;
}

std::vector<at::Tensor> SnapshotReader::of_all_replicas(const std::string& entry) {
  const auto found = from_->by_replica.find(name_of(entry));
  if (found == from_->by_replica.end()) refuse(entry, "it is missing");
  std::vector<at::Tensor> all;
  for (const auto& [replica, value] : found->second) {
    if (replica == static_cast<int>(all.size())) all.push_back(value);
  }
  if (all.empty() || static_cast<int>(all.size()) != replicas()) {
    refuse_snapshot(str("'", part_, "/", entry, "' of the snapshot has values for ", all.size(), " of ",
                        counted(replicas(), "replica")),
                    "", "gather(strategy, snapshot) brings the values of all workers together before it is saved");
  }
  return all;
}

std::vector<std::string> SnapshotReader::shared_names() const {
  const std::string front = part_ + '/';
  std::vector<std::string> names;
  for (auto each = from_->shared.lower_bound(front); each != from_->shared.end() && each->first.starts_with(front);
       ++each)
    names.push_back(each->first.substr(front.size()));
  return names;
}

void SnapshotReader::require_all_read() const {
  const std::string front = part_ + '/';
  const auto look = [&](const auto& entries) {
    for (auto each = entries.lower_bound(front); each != entries.end() && each->first.starts_with(front); ++each) {
      if (read_.contains(each->first)) continue;
      refuse(each->first.substr(front.size()), "the program has nothing of this name");
    }
  };
  look(from_->shared);
  look(from_->by_replica);
  look(from_->texts);
}

}  // namespace lockstep::detail
