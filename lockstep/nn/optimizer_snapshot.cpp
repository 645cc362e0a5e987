#include <ATen/ops/scalar_tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/drift.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/save/optimizer_entries.h"
#include "lockstep/nn/save/same_model.h"
#include "lockstep/nn/state.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/detail/snapshot_entries.h"

namespace lockstep {
namespace {

using detail::OptimizerCore;

std::string option_entry(std::size_t group, const char* option) { return str("group ", group, '/', option); }

class OptimizerSnapshot final : public Stateful {
 public:
  explicit OptimizerSnapshot(std::shared_ptr<OptimizerCore> core) : core_(std::move(core)) {}

  void capture(Snapshot& into, const std::string& name) const override {
    detail::require_between_runs(strategy(), "capture");
    detail::require_readable_state(*core_, "capture");
    detail::TensorMap entries;
    detail::add_optimizer_entries(detail::read_state(*core_), entries);
    for (const auto& [entry, value] : entries)
      detail::put_shared(into, str(name, '/', entry.substr(detail::kOptimizerPrefix.size())), value);
    settle_all(*core_, detail::settle_checks);
    const auto entry = [&](const std::string& text) { return str(name, '/', text); };
    detail::put_text(into, entry("class"), class_of(*core_));
    detail::put_count(into, entry("steps"), core_->replicas[0]->steps);
    detail::put_count(into, entry("skipped_steps"), core_->replicas[0]->skipped);
    detail::put_count(into, entry("groups"), std::ssize(core_->groups));
    for (std::size_t g = 0; g < core_->groups.size(); ++g) {
      detail::for_each_option(*core_->groups[g].options, [&](const char* option, double value) {
        detail::put_number(into, entry(option_entry(g, option)), value);
      });
    }
  }

  void check(const Snapshot& from, const std::string& name) const override { read(from, name); }

  void restore(const Snapshot& from, const std::string& name) override {
    detail::require_between_runs(strategy(), "restore");
    const Saved saved = read(from, name);
    replace_state(*core_, saved.state);
    for (std::size_t g = 0; g < core_->groups.size(); ++g) {
      detail::SnapshotReader reader(from, name);
      set_group(reader, g, *core_->groups[g].options);
    }
    for (const auto& replica : core_->replicas) replica->skipped = saved.skipped;
    core_->poison.lift();
  }

 private:
  struct Saved {
    OptimizerState state;
    std::int64_t skipped;
  };

  const Strategy& strategy() const { return core_->module->strategy(); }

  static void set_group(detail::SnapshotReader& reader, std::size_t group, torch::optim::OptimizerOptions& options) {
    detail::set_options(options, [&](const char* option) { return reader.number(option_entry(group, option)); });
  }

  Saved read(const Snapshot& from, const std::string& name) const {
    detail::SnapshotReader reader(from, name);
    const std::string own = class_of(*core_);
    if (const std::string& theirs = reader.text("class"); theirs != own)
      reader.refuse("class", str("it is ", theirs, ", the program's ", own));
    if (const std::int64_t groups = reader.count("groups"); groups != std::ssize(core_->groups))
      reader.refuse("groups", str("there are ", groups, ", in the program ", core_->groups.size()));
    for (std::size_t g = 0; g < core_->groups.size(); ++g) {
      const auto options = core_->groups[g].options->clone();
      set_group(reader, g, *options);
      detail::require_valid_options(g, *options);
    }
    Saved saved{state_from(reader), reader.count("skipped_steps")};
    reader.require_all_read();
    try {
      require_fitting_state(*core_, saved.state);
    } catch (const InvalidArgument& error) {  // whose help is about load_state
      throw InvalidArgument(errors::kSavedState,
                            {.what = error.text().what,
                             .where = str("restore of '", name, "'"),
                             .seen = error.text().seen,
                             .help = "make the optimizer as it was when the snapshot was captured"});
    }
    return saved;
  }

  OptimizerState state_from(detail::SnapshotReader& reader) const {
    detail::TensorMap entries;
    for (const std::string& entry : reader.shared_names()) {
      const std::string full = str(detail::kOptimizerPrefix, entry);
      if (detail::parameter_of_entry(full).empty()) reader.refuse(entry, "it names no parameter and key");
      entries.emplace(full, reader.shared(entry));
    }
    OptimizerState state = detail::optimizer_state_of(entries);
    for (const auto& replica : core_->replicas) {  // those without entries had not been stepped
      for (const auto& segment : replica->owned)
        state[core_->module->parameters()[static_cast<std::size_t>(segment.where.parameter)].name];
    }
    state[""]["steps"] = at::scalar_tensor(reader.count("steps"), at::kLong);
    return state;
  }

  std::shared_ptr<OptimizerCore> core_;
};

}  // namespace

std::shared_ptr<Stateful> state_of(const MirroredOptimizerBase& optimizer) {
  return std::make_shared<OptimizerSnapshot>(optimizer.core());
}

}  // namespace lockstep
