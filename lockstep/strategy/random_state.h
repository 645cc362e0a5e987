#pragma once

#include <string>

#include "lockstep/strategy/snapshot.h"

namespace lockstep::detail {

/// The random numbers of a strategy's replicas, and those of LibTorch's own generators, from which the rest of the program
/// draws. With other replicas than were captured, or on other devices, streams cannot continue: new ones begin, which
/// depend on the snapshot alone.
class RandomState final : public Stateful {
 public:
  explicit RandomState(Strategy& strategy) : strategy_(strategy) {}

  void capture(Snapshot& into, const std::string& name) const override;
  void restore(const Snapshot& from, const std::string& name) override;
  void check(const Snapshot& from, const std::string& name) const override;

 private:
  Strategy& strategy_;
};

}  // namespace lockstep::detail
