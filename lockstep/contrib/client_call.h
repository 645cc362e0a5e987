#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/contrib/tower_words.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib::detail {

/// Random numbers of functions that one worker calls for all, or each for its own towers: of `map`, `update` and
/// merges. While it exists, this thread draws from a separate stream, determined by the job's seed, the number of the
/// call and the place (the item, or the tower): the same on every worker. With a single tower nothing changes: it is a
/// plain program.
class LOCKSTEP_EXPORT ClientRandom {
 public:
  ClientRandom(const Strategy& core, int call, std::size_t place);
  ~ClientRandom();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

/// One call of map, update or update_non_slot, in which each worker calls the program's function for its own towers.
class LOCKSTEP_EXPORT ClientCall {
 public:
  /// `number`: counts such calls of the strategy, the same on every worker.
  ClientCall(const Strategy& core, const char* operation, const std::type_info& function, int number)
      : core_(core), operation_(operation), function_(function), number_(number) {}

  /// While the result exists: the function's random numbers for this item or tower.
  ClientRandom random_for(std::size_t place) const { return {core_, number_, place}; }

  /// Calls `f()`, which calls the function. If it throws on one worker, or workers called the operation with different
  /// functions, all throw.
  template <class F>
  void on_all_workers(F&& f) const {
    std::exception_ptr mine;
    try {
      std::optional<lockstep::detail::OwnersCall> part;  // collectives over all workers are rejected within it
      if (core_.num_workers() > 1) part.emplace(operation_);
      f();
    } catch (...) {
      mine = std::current_exception();
    }
    throw_together(mine);
  }

 private:
  void throw_together(const std::exception_ptr& mine) const;

  const Strategy& core_;
  const char* operation_;
  const std::type_info& function_;
  int number_;
};

}  // namespace lockstep::contrib::detail
