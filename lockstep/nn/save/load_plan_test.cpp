#include "lockstep/nn/save/load_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::detail {
namespace {

using data::SafetensorsEntry;
using data::SafetensorsType;

SafetensorsEntry entry(std::string name, std::vector<std::int64_t> shape = {2}) {
  return {std::move(name), SafetensorsType::Float32, std::move(shape), 0, 0};
}

LoadTarget target(std::string name, std::size_t tensor, std::vector<std::int64_t> shape = {2},
                  std::string type = "F32") {
  return {std::move(name), std::move(type), std::move(shape), tensor};
}

/// "a->0 b->1; missing: ..."
std::string text_of(const LoadPlan& plan) {
  std::string text;
  for (const auto& copy : plan.copies) text += str(copy.from, "->", copy.to, ' ');
  for (const auto& twins : plan.twins) text += str(twins.first, '=', twins.second, ' ');
  return text + "| " + list_differences(plan);
}

TEST(LoadPlan, DecidesAsTheTableSays) {
  struct Row {
    std::vector<SafetensorsEntry> file;
    std::vector<LoadTarget> model;
    const char* plan;
  };
  const std::vector<Row> rows{
      {{}, {}, "| "},
      {{entry("a"), entry("b")}, {target("b", 0), target("a", 1)}, "b->0 a->1 | "},
      {{entry("a")}, {target("a", 0), target("b", 1)}, "a->0 | missing: b"},
      {{entry("b"), entry("a")}, {}, "| unexpected: a, b"},
      {{entry("a", {3})},
       {target("a", 0)},
       "| of another shape or type: a (F32 [3] in the file, F32 [2] in the model)"},
      {{entry("a", {})},
       {target("a", 0, {}, "BF16")},
       "| of another shape or type: a (F32 [] in the file, BF16 [] in the model)"},
      {{entry("b")}, {target("a", 0), target("b", 0)}, "b->0 | "},
      {{entry("a"), entry("b")}, {target("a", 0), target("b", 0)}, "a->0 a=b | "},
      {{}, {target("a", 0), target("b", 0)}, "| missing: a or b"},
      {{entry("a", {3}), entry("b")},
       {target("a", 0), target("b", 0)},
       "b->0 | of another shape or type: a (F32 [3] in the file, F32 [2] in the model)"},
      {{entry("x\n")}, {target("a", 0)}, "| missing: a; unexpected: x\\n"},
  };
  for (const Row& row : rows) {
    const LoadPlan plan = plan_load(row.file, row.model);
    EXPECT_EQ(text_of(plan), row.plan);
    EXPECT_EQ(plan.fits(), std::string(row.plan).ends_with("| "));
  }
}

TEST(LoadPlan, ListsOfDifferencesAreBounded) {
  std::vector<SafetensorsEntry> file;
  std::vector<LoadTarget> model;
  for (int i = 0; i < 1000; ++i) {
    file.push_back(entry(str("file.", i, std::string(500, 'x'))));
    model.push_back(target(str("model.", i), static_cast<std::size_t>(i)));
  }
  const LoadPlan plan = plan_load(file, model);
  EXPECT_EQ(count_differences(plan), "1000 missing, 1000 unexpected");
  EXPECT_LT(list_differences(plan).size(), 2500u);
  EXPECT_NE(list_differences(plan).find("and 992 more"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::detail
