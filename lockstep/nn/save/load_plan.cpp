#include "lockstep/nn/save/load_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kMostNames = 8;
constexpr std::size_t kLongestName = 120;

using Kinds = std::array<std::pair<const char*, const std::vector<std::string>*>, 3>;

Kinds kinds_of(const LoadPlan& plan) {
  return {
      {{"missing", &plan.missing}, {"unexpected", &plan.unexpected}, {"of another shape or type", &plan.different}}};
}

}  // namespace

LoadPlan plan_load(const std::vector<data::SafetensorsEntry>& entries, const std::vector<LoadTarget>& targets) {
  std::unordered_map<std::string, const data::SafetensorsEntry*> in_file;
  for (const auto& entry : entries) in_file.emplace(entry.name, &entry);
  LoadPlan plan;
  std::unordered_map<std::string, bool> is_wanted;
  std::map<std::size_t, std::vector<const LoadTarget*>> names_of;
  for (const LoadTarget& target : targets) names_of[target.tensor].push_back(&target);
  for (const auto& [tensor, names] : names_of) {
    const data::SafetensorsEntry* source = nullptr;
    bool is_there = false;
    std::string all_names;
    for (const LoadTarget* target : names) {
      is_wanted[target->name] = true;
      all_names += (all_names.empty() ? "" : " or ") + target->name;
      const auto found = in_file.find(target->name);
      if (found == in_file.end()) continue;
      is_there = true;
      const data::SafetensorsEntry& entry = *found->second;
      if (to_string(entry.type) != target->type || entry.shape != target->shape) {
        plan.different.push_back(str(target->name, " (", data::describe(to_string(entry.type), entry.shape),
                                     " in the file, ", data::describe(target->type, target->shape), " in the model)"));
      } else if (source == nullptr) {
        source = &entry;
      } else {
        plan.twins.push_back({source->name, entry.name});
      }
    }
    if (source != nullptr) plan.copies.push_back({source->name, tensor});
    if (!is_there) plan.missing.push_back(all_names);
  }
  for (const auto& entry : entries) {
    if (!is_wanted.contains(entry.name)) plan.unexpected.push_back(entry.name);
  }
  std::ranges::sort(plan.unexpected);
  return plan;
}

std::string count_differences(const LoadPlan& plan) {
  std::string text;
  for (const auto& [kind, names] : kinds_of(plan)) {
    if (!names->empty()) text += str(text.empty() ? "" : ", ", names->size(), ' ', kind);
  }
  return text;
}

std::string list_differences(const LoadPlan& plan) {
  std::string text;
  for (const auto& [kind, names] : kinds_of(plan)) {
    if (names->empty()) continue;
    text += str(text.empty() ? "" : "; ", kind, ": ");
    for (std::size_t i = 0; i < std::min(names->size(), kMostNames); ++i) {
      const std::string shown = data::in_quotes((*names)[i], kLongestName);  // with unprintable characters of the file
                                                                             // escaped
      text += str(i == 0 ? "" : ", ", std::string_view(shown).substr(1, shown.size() - 2));
    }
    if (names->size() > kMostNames) text += str(" and ", names->size() - kMostNames, " more");
  }
  return text;
}

}  // namespace lockstep::detail
