#include "lockstep/base/device_name.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"

namespace lockstep {
namespace {

TEST(DeviceName, CudaIsLibTorchsNameOfAGpu) {
  for (const char* name : {"cuda:1", "CUDA:1", "/cuda:1", "/device:CUDA:1"})
    EXPECT_EQ(to_string(parse_device(name)), "/device:GPU:1") << name;
  EXPECT_EQ(canonicalize("cuda"), canonicalize("gpu"));
}

struct BadName {
  const char* name;
  const char* fragment;
};

void PrintTo(const BadName& bad, std::ostream* out) { *out << "'" << bad.name << "'"; }

class BadDeviceName : public ::testing::TestWithParam<BadName> {};

TEST_P(BadDeviceName, IsRefusedWithAReason) {
  expect_error([] { canonicalize(GetParam().name); }, Code::InvalidArgument, errors::kDevice, {GetParam().fragment});
}

INSTANTIATE_TEST_SUITE_P(
    , BadDeviceName,
    ::testing::Values(BadName{"cpu:-1", "must be >= 0"}, BadName{"/job:worker/task:-2", "must be >= 0"},
                      BadName{"gpu:99999999999999999999", "out of range"}, BadName{"/task:2147483648", "out of range"},
                      BadName{"cpu:", "whole number"}, BadName{"cpu:1x", "whole number"},
                      BadName{"cpu: 1", "whole number"}, BadName{"cpu:+1", "whole number"},
                      BadName{"/task:", "whole number"}, BadName{"/replica:x", "whole number"}, BadName{"/job:", "job"},
                      BadName{"/device::0", "device type"}, BadName{"/device:CPU:", "whole number"},
                      BadName{"/device:CPU", "unknown attribute"}, BadName{":", "unknown attribute"},
                      BadName{"/:0", "unknown attribute"}, BadName{"cpu:0:1", "unknown attribute"},
                      BadName{"/device:GPU:0:0", "unknown attribute"}, BadName{"nonsense", "unknown attribute"},
                      BadName{"cpu 0", "unknown attribute"}, BadName{"/cpu:0/gpu:0", "only one device type"},
                      BadName{"/device:foo:0", "must be in capital letters"}));

template <class E>
std::string refusal(const std::vector<std::string>& devices) {
  return message_of<E>([&] { plan_mirrored_devices(devices); });
}

TEST(MirroredDevices, MustBeAtLeastOne) {
  EXPECT_NE(refusal<InvalidArgument>({}).find("at least one entry"), std::string::npos);
}

TEST(MirroredDevices, AreNamedOnceWhateverTheSpelling) {
  EXPECT_NE(refusal<InvalidArgument>({"cpu:0", "/device:CPU:0"}).find("devices must be different"), std::string::npos);
}

TEST(MirroredDevices, OfSeveralWorkersPointToTheOtherStrategy) {
  const auto message = refusal<FailedPrecondition>({"/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0"});
  EXPECT_NE(message.find("must belong to one worker"), std::string::npos) << message;
  EXPECT_NE(message.find("MultiWorkerMirroredStrategy"), std::string::npos) << message;
}

TEST(MirroredDevices, MustNotMixLocalAndRemoteJobs) {
  const auto message = refusal<InvalidArgument>({"cpu:0", "/job:worker/task:0/cpu:0"});
  EXPECT_NE(message.find("got a mixed list"), std::string::npos) << message;
}

TEST(MirroredDevices, OfAnotherJobNeedATask) {
  EXPECT_NE(refusal<InvalidArgument>({"/job:worker/cpu:0"}).find("must have a task"), std::string::npos);
  EXPECT_EQ(to_string(plan_mirrored_devices({"/job:worker/task:3/cpu:0"})[0]),
            "/job:worker/replica:0/task:3/device:CPU:0");
}

TEST(LogicalGpus, AreReadAndWritten) {
  const DeviceName second = parse_device("gpu:3/1");
  EXPECT_EQ(second.type, "GPU");
  EXPECT_EQ(second.index, 3);
  EXPECT_EQ(second.logical, 1);
  EXPECT_EQ(to_string(canonicalize("cuda:0/7")), "/job:localhost/replica:0/task:0/device:GPU:0/7");
  for (const char* name : {"gpu:0", "gpu:0/0", "/job:worker/task:1/device:GPU:2/12", "cpu:1"}) {
    const DeviceName full = canonicalize(name);
    EXPECT_EQ(parse_device(to_string(full)), full) << name;
  }
  EXPECT_EQ(to_string(host_for("/task:1/gpu:0/1")), "/task:1/device:CPU:0");
  EXPECT_EQ(merge("gpu:0/1", "gpu:1").logical, std::nullopt);
  EXPECT_EQ(logical_gpus(2), (std::vector<std::string>{"gpu:0/0", "gpu:0/1"}));
  EXPECT_EQ(logical_gpus(1, 3), (std::vector<std::string>{"gpu:3/0"}));
}

TEST(LogicalGpus, AreRefusedWhereTheyMakeNoSense) {
  for (const char* name :
       {"cpu:0/0", "gpu/0", "gpu:*/0", "gpu:0/0/1", "3", "gpu:0/99999999999", "gpu:0/-1", "gpu:0/x"}) {
    EXPECT_THROW(parse_device(name), InvalidArgument) << name;
  }
}

TEST(LogicalGpus, OfOneGpuAreDifferentDevices) {
  const auto plan = plan_mirrored_devices({"gpu:0/1", "gpu:0/0"});
  EXPECT_EQ(to_string(plan[0]), "/job:localhost/replica:0/task:0/device:GPU:0/1");
  EXPECT_EQ(to_string(plan[1]), "/job:localhost/replica:0/task:0/device:GPU:0/0");
  EXPECT_NE(refusal<InvalidArgument>({"gpu:0/1", "gpu:0/1"}).find("more than once"), std::string::npos);
  EXPECT_NE(refusal<InvalidArgument>({"gpu:0", "gpu:0/1"}).find("must all have a number"), std::string::npos);
  EXPECT_NE(refusal<InvalidArgument>({"gpu:0/1", "gpu:0"}).find("must all have a number"), std::string::npos);
}

TEST(DeviceLists, CountFromZero) {
  EXPECT_EQ(cpus(2), (std::vector<std::string>{"cpu:0", "cpu:1"}));
  EXPECT_EQ(gpus(1), (std::vector<std::string>{"gpu:0"}));
  EXPECT_TRUE(cpus(0).empty());
  EXPECT_EQ(local_devices(2), (std::vector<std::string>{"/device:GPU:0", "/device:GPU:1"}));
}

TEST(DeviceLists, OfNegativeLengthAreRefused) {
  EXPECT_THROW(cpus(-1), InvalidArgument);
  EXPECT_THROW(gpus(-1), InvalidArgument);
  EXPECT_THROW(local_devices(-1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
