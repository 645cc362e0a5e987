#include "lockstep/base/device_name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kKnownTypes{"CPU", "GPU", "TPU", "CUSTOM"};
constexpr std::string_view kLocalJob = "localhost";
constexpr const char* kSpellings =
    "write a device as \"cpu:0\", \"gpu:1\", \"gpu:0/1\" or \"/job:worker/task:0/device:GPU:1\"";

[[noreturn]] void refuse(std::string what, std::string_view name, std::string help = kSpellings) {
  throw InvalidArgument(errors::kDevice,
                        {.what = std::move(what), .seen = str("device name '", name, "'"), .help = std::move(help)});
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return result;
}

/// LibTorch calls a GPU "cuda".
std::string known_by_its_name(std::string type) { return type == "CUDA" ? "GPU" : type; }

bool is_known_type(const std::string& type) { return std::ranges::find(kKnownTypes, type) != kKnownTypes.end(); }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int parse_number(std::string_view digits, std::string_view attribute, std::string_view name) {
  int value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool complete = !digits.empty() && end == digits.data() + digits.size();
  if (complete && status == std::errc::result_out_of_range) {
    refuse(str("the ", attribute, " number '", digits, "' of a device name is out of range"), name);
  }
  if (!complete || status != std::errc()) {
    refuse(str("the ", attribute, " number '", digits, "' of a device name is not a whole number"), name);
  }
  if (value < 0) refuse(str("the ", attribute, " number of a device name must be >= 0, got '", digits, "'"), name);
  return value;
}

// The index behind a device type: a number, or "*" for any.
std::optional<int> parse_index(std::string_view text, std::string_view name) {
  if (text == "*") return std::nullopt;
  return parse_number(text, "device", name);
}

void set_type(DeviceName& device, std::string type, std::string_view name) {
  if (!device.type.empty()) refuse("a device name can have only one device type", name);
  device.type = std::move(type);
}

/// The number behind "gpu:0/": one of several replicas on that GPU.
void read_logical(DeviceName& device, std::string_view digits, std::string_view name) {
  if (device.type != "GPU" || !device.index || device.logical) {
    refuse(
        str("only a GPU with an index can have logical replicas, got '", digits, "'"), name,
        "write \"gpu:0/0\", \"gpu:0/1\" for two replicas on one GPU; \"cpu:0\", \"cpu:1\" share the cores as they are");
  }
  device.logical = parse_number(digits, "replica", name);
}

void read_attribute(DeviceName& device, std::string_view attribute, std::string_view name) {
  const auto parts = split(attribute, ':');
  if (parts.size() == 1 && !attribute.empty() && attribute.find_first_not_of("0123456789") == std::string_view::npos)
    return read_logical(device, attribute, name);
  const std::string_view key = parts[0];
  const std::string type = known_by_its_name(upper(key));

  if (parts.size() == 2 && key == "job") {
    if (parts[1].empty()) refuse("the job of a device name is empty", name);
    device.job = std::string(parts[1]);
  } else if (parts.size() == 2 && key == "replica") {
    device.replica = parse_number(parts[1], key, name);
  } else if (parts.size() == 2 && key == "task") {
    device.task = parse_number(parts[1], key, name);
  } else if (parts.size() <= 2 && is_known_type(type)) {
    set_type(device, type, name);
    if (parts.size() == 2) device.index = parse_index(parts[1], name);
  } else if (parts.size() == 3 && key == "device") {
    if (parts[1].empty()) refuse("the device type of a device name is empty", name);
    // Other types keep their spelling: canonicalize decides whether it is acceptable.
    const std::string named = known_by_its_name(upper(parts[1]));
    set_type(device, named == "CPU" || named == "GPU" ? named : std::string(parts[1]), name);
    device.index = parse_index(parts[2], name);
  } else {
    refuse(str("unknown attribute '", key, "' in a device name"), name);
  }
}

DeviceName merged(DeviceName base, const DeviceName& device) {
  if (device.job) base.job = device.job;
  if (device.replica) base.replica = device.replica;
  if (device.task) base.task = device.task;
  if (!device.type.empty()) base.type = device.type;
  if (device.index) base.index = device.index;
  if (device.index || device.logical) base.logical = device.logical;
  return base;
}

DeviceName canonical(const DeviceName& device, const DeviceName& defaults) {
  const DeviceName first_cpu{.job = std::string(kLocalJob), .replica = 0, .task = 0, .type = "CPU", .index = 0};
  DeviceName result = merged(merged(first_cpu, defaults), device);
  if (result.type != upper(result.type)) {
    refuse(str("device type '", result.type, "' must be in capital letters"), to_string(device),
           str("write '", upper(result.type), "'"));
  }
  return result;
}

std::vector<std::string> numbered(std::string_view prefix, int count) {
  if (count < 0) {
    throw InvalidArgument(errors::kBadOption, {.what = str("the number of devices must be >= 0, got ", count),
                                               .help = "call cpus(n) or gpus(n) with n >= 0"});
  }
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.push_back(str(prefix, i));
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  std::string result;
  for (const auto& name : names) result += str(result.empty() ? "" : ", ", "'", name, "'");
  return result;
}

// A strategy in one process spans one worker; the names must say so consistently.
void check_one_worker(const std::vector<DeviceName>& devices, const std::string& seen) {
  const auto is_local = [](const DeviceName& device) { return !device.job || *device.job == kLocalJob; };
  const auto local = std::ranges::count_if(devices, is_local);
  const bool all_local = local == std::ssize(devices);
  if (local > 0 && !all_local) {
    throw InvalidArgument(
        errors::kDevice,
        {.what = "devices must all be local or all belong to one job, got a mixed list",
         .seen = seen,
         .help = "name devices of this machine only; for several machines use MultiWorkerMirroredStrategy"});
  }
  std::set<std::tuple<std::optional<std::string>, std::optional<int>, std::optional<int>>> workers;
  for (const auto& device : devices) workers.emplace(device.job, device.replica, device.task);
  if (workers.size() > 1) {
    throw FailedPrecondition(
        errors::kDevice,
        {.what = "the devices of a MirroredStrategy must belong to one worker",
         .seen = seen,
         .help = "for several machines use MultiWorkerMirroredStrategy; write all devices of one worker "
                 "with the same job, replica and task, or all without"});
  }
  if (!all_local && !devices.front().task) {
    throw InvalidArgument(errors::kDevice, {.what = "the name of a remote device must have a task",
                                            .seen = seen,
                                            .help = "write for example \"/job:worker/task:0/device:CPU:0\""});
  }
}

}  // namespace

DeviceName parse_device(std::string_view name) {
  DeviceName device;
  for (const auto attribute : split(name, '/')) {
    if (!attribute.empty()) read_attribute(device, attribute, name);
  }
  return device;
}

std::string to_string(const DeviceName& name) {
  std::string result;
  if (name.job) result += str("/job:", *name.job);
  if (name.replica) result += str("/replica:", *name.replica);
  if (name.task) result += str("/task:", *name.task);
  if (!name.type.empty()) result += str("/device:", name.type, ":", name.index ? str(*name.index) : "*");
  if (name.logical) result += str("/", *name.logical);
  return result;
}

DeviceName canonicalize(std::string_view name, std::string_view default_name) {
  return canonical(parse_device(name), parse_device(default_name));
}

DeviceName canonicalize_without_job_and_task(std::string_view name) {
  DeviceName result = canonicalize(name);
  result.job.reset();
  result.task.reset();
  result.replica = 0;
  return result;
}

DeviceName resolve(std::string_view name, std::string_view current) { return canonicalize(name, current); }

DeviceName merge(std::string_view base, std::string_view device) {
  return merged(parse_device(base), parse_device(device));
}

DeviceName host_for(std::string_view device) {
  DeviceName host = parse_device(device);
  host.type = "CPU";
  host.index = 0;
  host.logical.reset();
  return host;
}

std::vector<std::string> local_devices(int num_gpus) {
  auto devices = numbered("/device:GPU:", num_gpus);
  if (devices.empty()) devices.push_back("/device:CPU:0");
  return devices;
}

std::vector<std::string> cpus(int n) { return numbered("cpu:", n); }

std::vector<std::string> gpus(int n) { return numbered("gpu:", n); }

std::vector<std::string> logical_gpus(int n, int index) { return numbered(str("gpu:", index, "/"), n); }

std::vector<DeviceName> plan_mirrored_devices(const std::vector<std::string>& devices) {
  if (devices.empty()) {
    throw InvalidArgument(errors::kDevice, {.what = "devices must have at least one entry, got none",
                                            .help = "name devices, for example lockstep::cpus(2) or {\"gpu:0\"}"});
  }
  std::vector<DeviceName> given;
  given.reserve(devices.size());
  for (const auto& name : devices) given.push_back(parse_device(name));
  check_one_worker(given, listed(devices));

  std::vector<DeviceName> plan;
  plan.reserve(devices.size());
  for (const auto& device : given) {
    auto full = canonical(device, {});
    const auto is_half_numbered = [&](const DeviceName& other) {
      return other.type == full.type && other.index == full.index &&
             other.logical.has_value() != full.logical.has_value();
    };
    if (std::ranges::any_of(plan, is_half_numbered)) {
      throw InvalidArgument(errors::kDevice,
                            {.what = str("replicas on one GPU must all have a number, got ", listed(devices)),
                             .help = "write \"gpu:0/0\", \"gpu:0/1\", ... for several replicas on gpu:0"});
    }
    if (std::ranges::find(plan, full) != plan.end()) {
      throw InvalidArgument(errors::kDevice,
                            {.what = str("devices must be different, got ", to_string(full), " more than once"),
                             .seen = listed(devices),
                             .help = "give each replica its own device; \"cpu:0\", \"cpu:1\", ... "
                                     "are logical devices that share the cores, \"gpu:0/0\", \"gpu:0/1\", ... "
                                     "share a GPU"});
    }
    plan.push_back(std::move(full));
  }
  return plan;
}

}  // namespace lockstep
