#include <cmath>
#include <memory>
#include <string>

#include "lockstep/base/text.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/schedules.h"
#include "lockstep/nn/state.h"
#include "lockstep/strategy/detail/snapshot_entries.h"

// Scalers and schedules: a few numbers each.
namespace lockstep {
namespace {

class ScalerState final : public Stateful {
 public:
  explicit ScalerState(GradScaler& scaler) : scaler_(scaler) {}

  void capture(Snapshot& into, const std::string& name) const override {
    const GradScaler::State state = scaler_.state();
    detail::put_number(into, str(name, "/scale"), state.scale);
    detail::put_count(into, str(name, "/good_steps"), state.good_steps);
  }
  void check(const Snapshot& from, const std::string& name) const override { read(from, name); }
  void restore(const Snapshot& from, const std::string& name) override { scaler_.load_state(read(from, name)); }

 private:
  static GradScaler::State read(const Snapshot& from, const std::string& name) {
    detail::SnapshotReader reader(from, name);
    const GradScaler::State state{.scale = reader.number("scale"), .good_steps = reader.count("good_steps")};
    if (!(std::isfinite(state.scale) && state.scale > 0))
      reader.refuse("scale", str("it must be finite and > 0, got ", state.scale));
    reader.require_all_read();
    return state;
  }

  GradScaler& scaler_;
};

class PlateauState final : public Stateful {
 public:
  explicit PlateauState(PlateauSchedule& schedule) : schedule_(schedule) {}

  void capture(Snapshot& into, const std::string& name) const override {
    const PlateauSchedule::State& state = schedule_.state();
    detail::put_number(into, str(name, "/rate"), state.rate);
    detail::put_number(into, str(name, "/best"), state.best);
    detail::put_count(into, str(name, "/bad"), state.bad);
    detail::put_count(into, str(name, "/cooling"), state.cooling);
  }
  void check(const Snapshot& from, const std::string& name) const override { read(from, name); }
  void restore(const Snapshot& from, const std::string& name) override { schedule_.load_state(read(from, name)); }

 private:
  static PlateauSchedule::State read(const Snapshot& from, const std::string& name) {
    detail::SnapshotReader reader(from, name);
    const PlateauSchedule::State state{.rate = reader.number("rate"),
                                       .best = reader.number("best"),
                                       .bad = static_cast<int>(reader.count("bad")),
                                       .cooling = static_cast<int>(reader.count("cooling"))};
    reader.require_all_read();
    return state;
  }

  PlateauSchedule& schedule_;
};

}  // namespace

std::shared_ptr<Stateful> state_of(GradScaler& scaler) { return std::make_shared<ScalerState>(scaler); }
std::shared_ptr<Stateful> state_of(PlateauSchedule& schedule) { return std::make_shared<PlateauState>(schedule); }

}  // namespace lockstep
