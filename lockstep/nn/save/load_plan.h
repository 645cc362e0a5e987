#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/format/safetensors.h"

// Which tensor of a file goes where in a model. A pure function of their contents.
namespace lockstep::detail {

/// A name under which the model expects a tensor. Tied weights have several: entries with the same `tensor`.
struct LoadTarget {
  std::string name;
  std::string type;  ///< as in files: "F32"
  std::vector<std::int64_t> shape;
  std::size_t tensor = 0;
};

struct LoadPlan {
  struct Copy {
    std::string from;    ///< name in the file
    std::size_t to = 0;  ///< LoadTarget::tensor
  };
  /// Two names of one tensor that are both in the file.
  struct Twins {
    std::string first, second;
  };

  std::vector<Copy> copies;  ///< everything that fits
  std::vector<Twins> twins;
  std::vector<std::string> missing;     ///< names of the model; for tied weights all of them
  std::vector<std::string> unexpected;  ///< in the file
  std::vector<std::string> different;   ///< with the shapes and types of both

  bool fits() const { return missing.empty() && unexpected.empty() && different.empty(); }
};

/// `entries`: weights and buffers.
LoadPlan plan_load(const std::vector<data::SafetensorsEntry>& entries, const std::vector<LoadTarget>& targets);

/// "3 missing, 1 unexpected"
std::string count_differences(const LoadPlan& plan);
/// "missing: fc1.bias, fc1.weight; unexpected: ...", with some names of each.
std::string list_differences(const LoadPlan& plan);

}  // namespace lockstep::detail
