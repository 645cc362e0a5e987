#pragma once

#include <string>

// Checks shared by saving and loading a model and its optimizer.
namespace lockstep::detail {

class ModuleCore;
struct OptimizerCore;

/// "torch::optim::Adam"
std::string class_of(const OptimizerCore& optimizer);

/// InvalidArgument if the optimizer belongs to another model.
void require_same_model(const ModuleCore& model, const OptimizerCore& optimizer, const char* operation);

}  // namespace lockstep::detail
