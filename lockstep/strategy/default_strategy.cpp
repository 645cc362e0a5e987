#include "lockstep/strategy/default_strategy.h"

#include "lockstep/strategy/cross_device_ops.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/strategy_words.h"

namespace lockstep {
namespace {

class DefaultStrategy final : public Strategy {
 public:
  DefaultStrategy() : Strategy({.devices = {canonicalize("cpu:0")}, .cross_device_ops = default_cross_device_ops()}) {
    detail::leave_speaker(*this);
  }
  bool is_default() const override { return true; }

 private:
  void run_replicas(FunctionRef<void(int, local::Seat*)> body) override { body(0, nullptr); }
};

}  // namespace

Strategy& default_strategy() {
  static Strategy& strategy = *new DefaultStrategy;  // never destroyed: threads may outlive static objects
  return strategy;
}

}  // namespace lockstep
