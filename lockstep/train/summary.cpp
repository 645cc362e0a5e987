#include <torch/nn/module.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/train/formatted.h"
#include "lockstep/train/model.h"

namespace lockstep::train {
namespace {

/// "1,234,567"
std::string with_commas(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t k = 0; k < digits.size(); ++k) {
    if (k > 0 && (digits.size() - k) % 3 == 0) text.push_back(',');
    text.push_back(digits[k]);
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return formatted(unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

struct Line {
  std::string layer, shapes, parameters;
};

}  // namespace

std::string Model::summary() const {
  std::vector<Line> lines = {{"Layer", "Weights", "Parameters"}};
  for (const auto& entry : core_->replica(0)->named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const auto& module = *entry.value();
    std::string shapes;
    std::int64_t count = 0;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      if (!shapes.empty()) shapes += ", ";
      shapes += lockstep::str(parameter.key(), ' ', parameter.value().sizes());
      count += parameter.value().numel();
    }
    const bool is_leaf = module.children().empty();
    if (!is_leaf && count == 0) continue;
    const std::string name = entry.key().empty() ? "(model)" : entry.key();
    lines.push_back({lockstep::str(name, " (", module.name(), ')'), shapes, with_commas(count)});
  }
  std::size_t widths[2] = {0, 0};
  for (const Line& line : lines) {
    widths[0] = std::max(widths[0], line.layer.size());
    widths[1] = std::max(widths[1], line.shapes.size());
  }
  std::string text;
  for (const Line& line : lines) {
    const auto padded = [](std::string cell, std::size_t width) {
      cell.resize(width + 2, ' ');
      return cell;
    };
    text += lockstep::str(padded(line.layer, widths[0]), padded(line.shapes, widths[1]), line.parameters, '\n');
  }
  std::int64_t all = 0, trainable = 0;
  double bytes = 0, gradients = 0;
  for (const auto& parameter : core_->parameters()) {  // tied ones once
    const at::Tensor& tensor = parameter.leaves[0];
    all += tensor.numel();
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
    if (!tensor.requires_grad()) continue;
    trainable += tensor.numel();
    gradients += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
  }
  const auto replicas = static_cast<double>(core_->size());
  text += lockstep::str("Parameters: ", with_commas(all), " (", with_commas(trainable),
                        " trainable)\nMemory: ", bytes_text(bytes), " of weights, ", bytes_text(gradients * replicas),
                        " of gradients on ", counted(static_cast<long long>(core_->size()), "replica"), '\n');
  return text;
}

}  // namespace lockstep::train
