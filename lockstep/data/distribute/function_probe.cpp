#include "lockstep/data/distribute/function_probe.h"

#include <algorithm>

#include "lockstep/data/pipeline.h"

namespace lockstep::data {
namespace {

using Elements = StageTraits::Elements;

/// Skips stages that only reorder elements or read ahead: reading one element must not fill a buffer.
constexpr auto only_buffers = [](const Stage& stage) { return stage.traits().only_buffers; };

/// Whether computing an element would call a user's function or generator.
constexpr auto runs_functions = [](const Stage& stage) { return stage.traits().runs_functions; };

}  // namespace

const FunctionProbe::Seen& FunctionProbe::at(const Stage& function) {
  const auto known = seen_.find(&function);
  if (known != seen_.end()) return known->second;
  Seen seen;
  seen.made = make(function, seen.obstacle);
  seen.reads_files = seen.made && reads_files(*seen.made, seen.obstacle);
  return seen_.emplace(&function, std::move(seen)).first->second;
}

StagePtr FunctionProbe::made_by(const Stage& function) const {
  const auto known = seen_.find(&function);
  return known == seen_.end() ? nullptr : known->second.made;
}

StagePtr FunctionProbe::make(const Stage& function, std::string& obstacle) {
  try {
    auto element = example(*function.input(), obstacle);
    return element ? function.description().expand(std::move(*element)) : nullptr;
  } catch (...) {
    return nullptr;  // the iteration will report the error
  }
}

std::optional<Element> FunctionProbe::example(const Stage& stage, std::string& obstacle) {
  const StageTraits traits = stage.traits();
  if (traits.source == StageTraits::Source::Function) {
    const StagePtr made = make(stage, obstacle);
    return made ? example(*made, obstacle) : std::nullopt;
  }
  const Stage* running = find_stage(stage, runs_functions);
  if (running == nullptr) {
    Element element;
    const bool has_one = without_stages(stage.shared_from_this(), only_buffers)->iterate({})->next(element);
    return has_one ? std::optional(std::move(element)) : std::nullopt;
  }
  // Any of the input's elements will do if this stage passes them on unchanged.
  if (traits.elements == Elements::Same || traits.elements == Elements::Stretch || traits.elements == Elements::Picked)
    return example(*stage.input(), obstacle);
  obstacle = running->describe();
  return std::nullopt;
}

bool FunctionProbe::reads_files(const Stage& stage, std::string& obstacle) {
  const StageTraits::Source source = stage.traits().source;
  if (source == StageTraits::Source::Files) return true;
  if (source == StageTraits::Source::Function) {
    const StagePtr made = make(stage, obstacle);
    if (made && reads_files(*made, obstacle)) return true;
  }
  return std::ranges::any_of(stage.inputs(), [&](const StagePtr& input) { return reads_files(*input, obstacle); });
}

}  // namespace lockstep::data
