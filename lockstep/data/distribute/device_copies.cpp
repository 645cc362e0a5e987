#include "lockstep/data/distribute/device_copies.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "lockstep/strategy/gpu.h"

namespace lockstep::data {

std::optional<DeviceCopies> DeviceCopies::for_gpus_among(const std::vector<at::Device>& devices) {
  if (std::ranges::none_of(devices, &at::Device::is_cuda)) return std::nullopt;
  DeviceCopies copies;
  std::vector<std::shared_ptr<gpu::CopyStream>>& streams = copies.streams_;
  for (const at::Device& device : devices) {
    const auto known = static_cast<std::size_t>(std::ranges::find(devices, device) - devices.begin());
    if (known < streams.size())
      streams.push_back(streams[known]);
    else
      streams.push_back(device.is_cuda() ? gpu::make_copy_stream(device) : nullptr);
  }
  return copies;
}

void DeviceCopies::start(InputStep& step) {
  for (std::size_t k = 0; k < streams_.size() && k < step.elements.size(); ++k) {
    if (!streams_[k] || !step.elements[k]) continue;
    for (Component& component : step.elements[k]->components) {
      if (auto* tensor = std::get_if<at::Tensor>(&component)) *tensor = streams_[k]->copy(*tensor);
    }
  }
  for (std::size_t k = 0; k < streams_.size(); ++k) {
    const auto first = std::ranges::find(streams_, streams_[k]) - streams_.begin();
    if (streams_[k] && static_cast<std::size_t>(first) == k) step.arrivals.push_back(streams_[k]->mark());
  }
}

void DeviceCopies::finish(const InputStep& step) {
  for (const auto& arrival : step.arrivals) arrival->await();
  for (const std::optional<Element>& element : step.elements) {
    if (!element) continue;
    for (const Component& component : element->components) {
      // The caller's stream waits for the replicas' streams when a run ends, so waiting for it covers all of them.
      if (const auto* tensor = std::get_if<at::Tensor>(&component)) gpu::keep_for_this_stream(*tensor);
    }
  }
}

}  // namespace lockstep::data
