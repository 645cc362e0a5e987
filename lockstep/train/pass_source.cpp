#include "lockstep/train/pass_source.h"

#include <atomic>

#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/snapshot_entries.h"

namespace lockstep::train::detail {
namespace {

constexpr const char* kTaken = "/taken";
constexpr const char* kPosition = "/position";

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

PassSource::PassSource() : number_(next_number()) {}

void PassSource::capture(Snapshot& into, const std::string& name) {
  if (!taken_) return;
  lockstep::detail::put_count(into, name + kTaken, *taken_);
  if (const auto exact = place()) exact->capture(into, name + kPosition);
}

bool PassSource::restore(Strategy& strategy, const Snapshot& from, const std::string& name) {
  if (!from.texts.contains(name + kTaken)) return false;
  start_pass(strategy);
  lockstep::detail::SnapshotReader reader(from, name);
  const std::int64_t taken = reader.count("taken");
  if (const auto exact = place()) {
    exact->check(from, name + kPosition);
    exact->restore(from, name + kPosition);
    taken_ = taken;
    return true;
  }
  while (*taken_ < taken && skip_step()) {
  }
  return true;
}

}  // namespace lockstep::train::detail
