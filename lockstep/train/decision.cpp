#include "lockstep/train/decision.h"

#include "lockstep/base/text.h"

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
    bool is_new = !each.reason.empty();
    for (const std::string& seen : reasons) is_new &= seen != each.reason;
    if (is_new) reasons.push_back(each.reason);
  }
  for (const std::string& reason : reasons) {
    if (!all.reason.empty()) all.reason += "; ";
    all.reason += reason;
  }
  return all;
}

std::string to_string(const Decision& decision) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (decision.stop) add("stop");
  if (decision.end_epoch) add("end the epoch");
  if (decision.save || decision.save_self) add("save");
  if (decision.learning_rate) add(str("learning rate ", *decision.learning_rate));
  if (!text.empty() && !decision.reason.empty()) text += str(" (", decision.reason, ")");
  return text;
}

}  // namespace lockstep::train
