#include "lockstep/nn/autocast.h"

#include <ATen/autocast_mode.h>

#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/devices.h"

namespace lockstep {

Autocast::Autocast(at::ScalarType dtype, std::optional<at::DeviceType> device) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw InvalidArgument(errors::kDtype,
                          {.what = str("autocast needs a 16-bit floating type, got ", c10::toString(dtype)),
                           .where = "Autocast",
                           .help = "use torch::kBFloat16 or torch::kHalf"});
  }
  at::autocast::increment_nesting();
  const auto turn_on = [&](at::DeviceType each) {
    outer_[devices_++] = {each, at::autocast::get_autocast_dtype(each), at::autocast::is_autocast_enabled(each)};
    at::autocast::set_autocast_dtype(each, dtype);
    at::autocast::set_autocast_enabled(each, true);
  };
  turn_on(device.value_or(at::kCPU));
  if (!device && visible_gpus() > 0) turn_on(at::kCUDA);
}

Autocast::~Autocast() {
  for (const Outer& outer : std::span(outer_).first(devices_)) {
    at::autocast::set_autocast_enabled(outer.device, outer.is_enabled);
    at::autocast::set_autocast_dtype(outer.device, outer.dtype);
  }
  if (at::autocast::decrement_nesting() == 0) detail::forget_cast_weights();
}

void detail::forget_cast_weights() { at::autocast::clear_cache(); }

}  // namespace lockstep
