#pragma once

#include <string>

// What saving and loading both ask of a model and its optimizer.
namespace lockstep::detail {

class ModuleCore;
struct OptimizerCore;

/// "torch::optim::Adam"
std::string class_of(const OptimizerCore& optimizer);

/// InvalidArgument if the optimizer is another model's.
void require_same_model(const ModuleCore& model, const OptimizerCore& optimizer, const char* operation);

}  // namespace lockstep::detail
