#include "lockstep/strategy/autocast_state.h"

#include <c10/macros/Export.h>

// As in ATen/autocast_mode.h. With other arguments programs would not link; autocast_state_test checks the results.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(c10::DeviceType device_type);
TORCH_API c10::ScalarType get_autocast_dtype(c10::DeviceType device_type);
TORCH_API bool is_autocast_cache_enabled();
TORCH_API void set_autocast_cache_enabled(bool enabled);
TORCH_API void clear_cache();
}  // namespace at::autocast

namespace lockstep::detail {

bool is_autocast_on(c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
c10::ScalarType autocast_type(c10::DeviceType device) { return at::autocast::get_autocast_dtype(device); }

void forget_casts() {
  if (is_autocast_on(c10::DeviceType::CPU) || is_autocast_on(c10::DeviceType::CUDA)) at::autocast::clear_cache();
}

CastsInRun::CastsInRun(bool several) : outer_(at::autocast::is_autocast_cache_enabled()) {
  if (several) at::autocast::set_autocast_cache_enabled(false);
}

CastsInRun::~CastsInRun() {
  at::autocast::set_autocast_cache_enabled(outer_);
  forget_casts();
}

}  // namespace lockstep::detail
