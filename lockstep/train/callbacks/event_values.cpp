#include "lockstep/train/callbacks/event_values.h"

#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/snapshot_entries.h"
#include "lockstep/values/const_data.h"

namespace lockstep::train::detail {

Histogram histogram_of(const at::Tensor& values) {
  const at::Tensor flat = values.detach().cpu().to(at::kDouble).reshape({-1}).contiguous();
  return Histogram(std::span<const double>(const_data<double>(flat), static_cast<std::size_t>(flat.numel())));
}

Picture picture_of(const std::string& tag, const at::Tensor& tensor) {
  const bool has_channels = tensor.defined() && tensor.dim() == 3;
  const bool is_bytes = tensor.defined() && tensor.scalar_type() == at::kByte;
  const bool is_picture = tensor.defined() && tensor.numel() > 0 && (is_bytes || tensor.is_floating_point()) &&
                          (tensor.dim() == 2 || (has_channels && tensor.size(0) <= 4));
  if (!is_picture) {
    throw InvalidArgument(
        errors::kStructure,
        {.what = lockstep::str("image \"", tag,
                               "\" must be [height, width] or [1 to 4 channels, height, width], of bytes or "
                               "of floating-point numbers from 0 to 1, got ",
                               tensor.defined() ? lockstep::detail::form_of(tensor) : "an undefined tensor"),
         .where = "tensor_board",
         .help = "give a batch of images one by one, under tags of their own"});
  }
  at::Tensor pixels = has_channels ? tensor.permute({1, 2, 0}) : tensor.unsqueeze(2);
  if (!is_bytes) pixels = pixels.to(at::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round().to(at::kByte);
  pixels = pixels.cpu().contiguous();
  const auto* const bytes = const_data<std::uint8_t>(pixels);
  return {.image = {.height = static_cast<int>(pixels.size(0)),
                    .width = static_cast<int>(pixels.size(1)),
                    .channels = static_cast<int>(pixels.size(2))},
          .pixels = std::vector<std::uint8_t>(bytes, bytes + pixels.numel())};
}

}  // namespace lockstep::train::detail
