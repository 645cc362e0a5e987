#include "lockstep/data/distribute/function_look.h"

#include <algorithm>

namespace lockstep::data {
namespace {

using Elements = StageTraits::Elements;

/// The stage without what only reorders elements or reads them ahead: a look at one element must not fill a buffer.
StagePtr without_buffers(const StagePtr& stage) {
  if (stage->traits().only_buffers) return without_buffers(stage->input());
  return with_changed_inputs(stage, without_buffers);
}

}  // namespace

const Stage* first_running(const Stage& stage) {
  if (stage.traits().runs_functions) return &stage;
  for (const StagePtr& input : stage.inputs()) {
    if (const Stage* found = first_running(*input)) return found;
  }
  return nullptr;
}

const FunctionLook::Seen& FunctionLook::at(const Stage& function) {
  const auto known = seen_.find(&function);
  if (known != seen_.end()) return known->second;
  Seen seen;
  seen.made = make(function, seen.obstacle);
  seen.reads_files = seen.made && reads_files(*seen.made, seen.obstacle);
  return seen_.emplace(&function, std::move(seen)).first->second;
}

StagePtr FunctionLook::made_by(const Stage& function) const {
  const auto known = seen_.find(&function);
  return known == seen_.end() ? nullptr : known->second.made;
}

StagePtr FunctionLook::make(const Stage& function, std::string& obstacle) {
  try {
    auto element = example(*function.input(), obstacle);
    return element ? function.description().expand(std::move(*element)) : nullptr;
  } catch (...) {
    return nullptr;  // whoever iterates will see the error, whatever was thrown
  }
}

std::optional<Element> FunctionLook::example(const Stage& stage, std::string& obstacle) {
  const StageTraits traits = stage.traits();
  if (traits.source == StageTraits::Source::Function) {
    const StagePtr made = make(stage, obstacle);
    return made ? example(*made, obstacle) : std::nullopt;
  }
  const Stage* running = first_running(stage);
  if (running == nullptr) {
    Element element;
    const bool has_one = without_buffers(stage.shared_from_this())->iterate({})->next(element);
    return has_one ? std::optional(std::move(element)) : std::nullopt;
  }
  // Any of the input's elements will do where this stage gives them as they are.
  if (traits.elements == Elements::Same || traits.elements == Elements::Stretch || traits.elements == Elements::Picked)
    return example(*stage.input(), obstacle);
  obstacle = running->describe();
  return std::nullopt;
}

bool FunctionLook::reads_files(const Stage& stage, std::string& obstacle) {
  const StageTraits::Source source = stage.traits().source;
  if (source == StageTraits::Source::Files) return true;
  if (source == StageTraits::Source::Function) {
    const StagePtr made = make(stage, obstacle);
    if (made && reads_files(*made, obstacle)) return true;
  }
  return std::ranges::any_of(stage.inputs(), [&](const StagePtr& input) { return reads_files(*input, obstacle); });
}

}  // namespace lockstep::data
