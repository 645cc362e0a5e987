#include "lockstep/train/decision.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/data/format/listed.h"

namespace lockstep::train {

Decision combine(const std::vector<Decision>& decisions) {
  Decision all;
  std::vector<std::string> reasons;
  for (const Decision& each : decisions) {
    all.stop |= each.stop;
    all.end_epoch |= each.end_epoch;
    all.save |= each.save;
    all.save_self |= each.save_self;
    if (!all.learning_rate) all.learning_rate = each.learning_rate;
    const bool is_new = std::ranges::find(reasons, each.reason) == reasons.end();
    if (is_new && !each.reason.empty()) reasons.push_back(each.reason);
  }
  all.reason = data::listed(reasons, "; ");
  return all;
}

std::string to_string(const Decision& decision) {
  std::vector<std::string> parts;
  if (decision.stop) parts.emplace_back("stop");
  if (decision.end_epoch) parts.emplace_back("end the epoch");
  if (decision.save || decision.save_self) parts.emplace_back("save");
  if (decision.learning_rate) parts.push_back(str("learning rate ", *decision.learning_rate));
  std::string text = data::listed(parts);
  if (!text.empty() && !decision.reason.empty()) text += str(" (", decision.reason, ")");
  return text;
}

}  // namespace lockstep::train
