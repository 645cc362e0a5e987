#include "lockstep/nn/step/outside_changes.h"

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/module_core.h"
#include "lockstep/nn/tensor_digest.h"

namespace lockstep::detail {

bool OutsideChanges::counts(std::size_t p) const { return group_of_[p] >= 0 || !module_.is_pinned(p); }

std::int64_t OutsideChanges::version(std::size_t p) const {
  const auto& counter = module_.parameters()[p].leaves[0].unsafeGetTensorImpl()->version_counter();
  return counts(p) && counter.enabled() ? counter.current_version() : 0;
}

void OutsideChanges::remember() {
  for (std::size_t p = 0; p < versions_.size(); ++p) versions_[p] = version(p);
}

std::uint64_t OutsideChanges::mark() {
  constexpr std::uint64_t kAlwaysCompared = 16, kComparedEvery = 64;
  bool is_changed = false;
  for (std::size_t p = 0; p < versions_.size(); ++p) is_changed = is_changed || version(p) != versions_[p];
  if (!is_changed) return 0;
  ++changes_;
  if (changes_ > kAlwaysCompared && changes_ % kComparedEvery != 0) return changes_;
  std::uint64_t mark = changes_;
  for (const std::string& line : lines()) mark = fnv1a<char>(line, mark);
  return mark;
}

workers::Texts OutsideChanges::lines() const {
  workers::Texts lines;
  for (std::size_t p = 0; p < versions_.size(); ++p) {
    const auto& parameter = module_.parameters()[p];
    if (counts(p))
      lines.push_back(lockstep::str("digest of ", parameter.name, ": ", digest_of(parameter.leaves[0].detach())));
  }
  return lines;
}

}  // namespace lockstep::detail
