#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Which program runs the cases of each area of the golden data. A program runs the areas it owns, counts those of other
// programs as belonging elsewhere, and fails for an area that is not in this table.
namespace lockstep::golden {

enum class Program {
  None,       ///< the area is not in the table: a failure of every program that meets it
  Semantics,  ///< golden_semantics_test
  Input,      ///< golden_input_test
  Cluster,    ///< golden_cluster_test
  Compat,     ///< golden_compat_test
};

inline std::string_view to_string(Program program) {
  switch (program) {
    case Program::None: return "no program";
    case Program::Semantics: return "golden_semantics_test";
    case Program::Input: return "golden_input_test";
    case Program::Cluster: return "golden_cluster_test";
    case Program::Compat: return "golden_compat_test";
  }
  return "no program";
}

struct AreaOwner {
  std::string_view area;
  Program program;
};

inline constexpr AreaOwner kAreaOwners[] = {
    {"all_gather", Program::Semantics},
    {"all_reduce", Program::Semantics},
    {"assign", Program::Semantics},
    {"batch_reduce", Program::Semantics},
    {"broadcast", Program::Semantics},
    {"compute_batch_size", Program::Input},
    {"context", Program::Semantics},
    {"create", Program::Semantics},
    {"device_string", Program::Cluster},
    {"distribute_dataset", Program::Input},
    {"from_function", Program::Input},
    {"gather", Program::Semantics},
    {"input_context", Program::Semantics},  // see owner_of
    {"iterator", Program::Input},
    {"legacy_rebatch", Program::Input},
    {"merge_call", Program::Semantics},
    {"multi_worker", Program::Cluster},
    {"numpy", Program::Input},
    {"pack", Program::Semantics},
    {"rebatch", Program::Input},
    {"rebatch_sizes", Program::Input},
    {"reduce", Program::Semantics},
    {"reduce_axis", Program::Semantics},
    {"regroup", Program::Semantics},
    {"resolver", Program::Cluster},
    {"scatter", Program::Semantics},
    {"shard", Program::Input},
    {"sync_on_read", Program::Semantics},
    {"tf_config", Program::Cluster},
    {"update", Program::Semantics},
    {"v1_iterator", Program::Compat},
    {"values_from_function", Program::Semantics},
};

/// The program that runs this case.
inline Program owner_of(const nlohmann::json& data) {
  const std::string area = data.at("area");
  // Both files have this area, in two forms: input.json's has a "what".
  if (area == "input_context" && data.contains("what")) return Program::Input;
  for (const AreaOwner& each : kAreaOwners) {
    if (each.area == area) return each.program;
  }
  return Program::None;
}

/// The failure message of a case whose area no program owns.
inline std::string unowned_area(const nlohmann::json& data) {
  return "no golden program owns the area " + data.at("area").dump() +
         ": enter it in tests/support/golden_areas.h, and let a program run it";
}

}  // namespace lockstep::golden
