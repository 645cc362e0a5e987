#include "lockstep/strategy/devices.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable.h"

namespace lockstep {
namespace {

/// "... and ...", or empty where there are not two.
std::string two_gpus_of(const std::vector<DeviceName>& devices) {
  const auto first = std::ranges::find(devices, "GPU", &DeviceName::type);
  const auto other = std::find_if(first, devices.end(), [&](const DeviceName& device) {
    return device.type == "GPU" && device.index != first->index;
  });
  return other == devices.end() ? "" : str(to_string(*first), " and ", to_string(*other));
}

}  // namespace

at::Device torch_device(const DeviceName& name) {
  if (name.type == "CPU") return at::Device(at::kCPU);
  if (name.type == "GPU") return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(name.index.value_or(0)));
  throw InvalidArgument(errors::kDevice, {.what = str("there is no LibTorch device for ", to_string(name)),
                                          .help = "use cpu:<n> or gpu:<n>"});
}

std::vector<at::Device> torch_devices(const std::vector<DeviceName>& names) {
  std::vector<at::Device> devices;
  for (const DeviceName& name : names) devices.push_back(torch_device(name));
  return devices;
}

int visible_gpus() { return gpu::visible(); }

const DeviceName& require_here(const DeviceName& name) {
  if (!torch_device(name).is_cuda() || name.index.value_or(0) < visible_gpus()) return name;
  if (!gpu::is_built()) {
    throw InvalidArgument(errors::kDevice,
                          {.what = "GPUs are not supported in this build",
                           .seen = str("device ", to_string(name), "; Lockstep is built without LOCKSTEP_CUDA"),
                           .help = "use ls::cpus(n): n replicas that share the cores of this machine; for GPUs build "
                                   "Lockstep with -DLOCKSTEP_CUDA=ON"});
  }
  throw InvalidArgument(errors::kDevice, {.what = str("there is no device ", to_string(name)),
                                          .seen = str(visible_gpus(), " GPUs are visible to this LibTorch"),
                                          .help = "name one of these GPUs, or use ls::cpus(n)"});
}

std::vector<std::string> devices_or_default(const std::optional<std::vector<std::string>>& asked) {
  const std::vector<std::string> devices = asked ? *asked : local_devices(visible_gpus());
  const TuneRequest* const request = tune_request();
  if (request == nullptr) return devices;
  for (const std::string& device : devices) {
    if (parse_device(device).type != "GPU") continue;
    throw Unimplemented(errors::kNotAvailable, {.what = "lockstep tune measures replicas on CPUs",
                                                .seen = str("this program makes a strategy on ", device),
                                                .help = "on GPUs, make one replica for each: ls::gpus(n)"});
  }
  return cpus(request->replicas);
}

bool are_mixed(const std::vector<at::Device>& devices) {
  return std::ranges::any_of(devices, &at::Device::is_cpu) && std::ranges::any_of(devices, &at::Device::is_cuda);
}

DeviceKinds kinds_of(const std::vector<at::Device>& devices) {
  if (are_mixed(devices)) return DeviceKinds::Mixed;
  return std::ranges::any_of(devices, &at::Device::is_cuda) ? DeviceKinds::Gpus : DeviceKinds::Cpus;
}

void require_way_between(const std::vector<DeviceName>& devices, Implementation implementation) {
  const std::string seen = two_gpus_of(devices);
  if (seen.empty() || implementation != Implementation::Nccl) return;
  throw Unimplemented(errors::kNotAvailable,
                      {.what = "Implementation::Nccl is not available between the GPUs of one process",
                       .seen = seen,
                       .help = "leave .communication.implementation at Auto, which copies from GPU to GPU; or start a "
                               "worker for each GPU, with MultiWorkerMirroredStrategy"});
}

void require_own_gpu(const char* operation, at::Device own, at::Device given) {
  if (given == own || !given.is_cuda() || !own.is_cuda()) return;
  throw InvalidArgument(errors::kDevice, {.what = str(operation, " needs a tensor on the replica's own GPU, ",
                                                      own.str(), ", got one on ", given.str()),
                                          .where = operation,
                                          .help = "move it first: value.to(ls::get_replica_context().device())"});
}

std::shared_ptr<const Placement> place_on(Devices devices, const Devices& of_replicas) {
  Placement placement;
  for (const std::string& device : devices) {
    const auto found = std::find(of_replicas.begin(), of_replicas.end(), device);
    placement.replicas.push_back(found == of_replicas.end() ? -1 : static_cast<int>(found - of_replicas.begin()));
  }
  placement.devices = std::move(devices);
  return std::make_shared<const Placement>(std::move(placement));
}

Destinations::Destinations(const std::string& device) : devices_{device} { require_here(canonicalize(device)); }

Destinations::Destinations(const at::Tensor& where_this_is) {
  if (!where_this_is.defined()) return;
  const at::Device device = where_this_is.device();
  devices_.push_back(device.is_cuda() ? str("gpu:", static_cast<int>(device.index())) : "cpu:0");
}

Destinations::Destinations(const Variable& where_its_components_are) {
  const std::vector<at::Tensor>& components = where_its_components_are.values();
  if (where_its_components_are.is_distributed())
    components_ = static_cast<int>(components.size());
  else
    *this = Destinations(components.at(0));
}

Devices Destinations::resolve(const Strategy& strategy) const {
  if (components_ > 0) {
    const Devices& all = strategy.devices();
    if (static_cast<std::size_t>(components_) > all.size()) {
      throw InvalidArgument(errors::kDestination, {.what = str("a value of ", counted(components_, "component"),
                                                               " cannot be the destination of ",
                                                               counted(static_cast<int>(all.size()), "replica")),
                                                   .help = "pass a value or variable of this strategy"});
    }
    return {all.begin(), all.begin() + components_};
  }
  if (devices_.empty()) {
    throw InvalidArgument(errors::kDestination,
                          {.what = "destinations must not be empty",
                           .help = "name a device, or pass a tensor, value or variable that has one"});
  }
  const std::string here = to_string(host_for(strategy.devices()[0]));  // whose devices need no job and task
  Devices names;
  for (const std::string& device : devices_) names.push_back(to_string(canonicalize(device, here)));
  return names;
}

}  // namespace lockstep
