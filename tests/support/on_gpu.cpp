#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>

#include "lockstep/nn/weights_apart.h"
#include "lockstep/strategy/devices.h"
#include "tests/support/replicas.h"

// The main function of tests that also run on a GPU, with LOCKSTEP_TEST_DEVICES=gpu: replicas and tensors are on it
// then. With LOCKSTEP_TEST_APART each replica has a copy of the weights, as on several GPUs; with
// LOCKSTEP_TEST_OUT_OF_REACH these count as GPUs that cannot reach each other's memory.
namespace lockstep {
namespace {

struct Left {
  const char *tests, *why;
};

/// Tests that are about CPUs.
const Left kAboutCpus[] = {
    {"HugeBlocksTest.*", "memory of CPU tensors"},
    {"Memory.*:*/Memory.*", "memory of CPU tensors"},
    {"IntraOp.*", "threads inside operations"},
    {"Threads.*:ThreadsTest.*:*/RunTest.EveryReplicaUsesTheThreadsOfItsStrategy/*", "threads inside operations"},
    {"*ReplicaConvolution.*:*ReplicaLinear.*:*ReplicaMaxPool.*:MaxPoolOfReplicas.*", "kernels for CPUs"},
    {"OneReplica.IsThePlainProgramWithConvolutionsDropoutAndASampler",
     "a sampler of LibTorch, whose numbers are on the CPU"},
    {"Save.AKillAtAnyMoment*:Save.ProcessesThatSave*", "forks, after which CUDA cannot be used"},
};

/// Tests of behaviour that differs on GPUs. docs/gpu.md describes what users see of it.
const Left kOtherwise[] = {
    {"*/Gradients.AGradientThatIsNotFinite*:*/Misuse.OfNotFiniteGradientsInParts/*:*/Layers.AScaledLossGives*:"
     "*/MixedPrecision.TheScaleSinks*",
     "what is not finite is found after minimize has returned"},
    {"*/Habits.ZeroGradOfTheModelBegins*:*/Habits.AReplicaWithNothingButZeros*",
     "a window does not restart when gradients become zero"},
    {"*/ChangedWeights.AnOptimizerOfLibTorch*:*/SilentMistakes.Clipping*:*/SilentMistakes.GradientsThatChange*:"
     "*/PortingMistakes.EveryKindOfChangedGradient*",
     "values that LibTorch changes without a new version are not looked at"},
    {"SameCall.ScalersOfDifferentScale", "scales are on the GPU and are not compared"},
    {"Drift.OfOptimizerStateNames*", "steps are counted on the GPU"},
    {"TrainingMistakes.AreOneClearErrorEach",
     "a label out of range is found by the GPU, which no program can use any more then"},
    {"*/Misuse.OfParametersInOneMemory/*",
     "parameters that share memory on the CPU are apart once LibTorch has moved them"},
};

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Puts tensors made without a device on the GPU.
void make_on_gpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& given = torch::jit::peek(*stack, i, arguments.size());
    if (arguments[i].name() == "device" && given.isNone()) given = c10::Device(c10::kCUDA, 0);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

bool makes_tensors(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.name() == "device"; }) &&
         std::none_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.type()->str() == "Tensor"; });
}

/// On the calling thread and on replica threads, which inherit it, tensors are made on the GPU, as with Python's
/// `torch.set_default_device`. Except by `empty` and `scalar_tensor`, with which `at::tensor` and the library itself
/// make tensors for the host.
void make_tensors_on_gpu() {
  static auto& others = *new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  others.fallback(torch::CppFunction::makeFallthrough());
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || name.name.find("empty") != std::string::npos) continue;
    if (name.name == "aten::scalar_tensor" || name.name == "aten::from_file") continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !makes_tensors(op->schema())) continue;
    const std::string overload = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&make_on_gpu>());
  }
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

void leave_out(std::span<const Left> all, const char* why_all) {
  std::string filter = testing::GTEST_FLAG(filter);
  for (const auto& [tests, why] : all) {
    std::cout << "Left out, " << why_all << " (" << why << "): " << tests << "\n";
    filter += (filter.find('-') == std::string::npos ? "-" : ":") + std::string(tests);
  }
  testing::GTEST_FLAG(filter) = filter;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!lockstep::tests_are_on_gpu()) return RUN_ALL_TESTS();
  if (lockstep::visible_gpus() == 0) {
    std::cout << "skipped, because no GPU is visible\n";
    return 77;
  }
  lockstep::leave_out(lockstep::kAboutCpus, "about CPUs");
  lockstep::leave_out(lockstep::kOtherwise, "otherwise on GPUs");
  lockstep::keep_weights_apart({.weights = std::getenv("LOCKSTEP_TEST_APART") != nullptr,
                                .in_reach = std::getenv("LOCKSTEP_TEST_OUT_OF_REACH") == nullptr});
  lockstep::use_nccl_on_one_gpu();
  lockstep::make_tensors_on_gpu();
  const int failed = RUN_ALL_TESTS();
  const auto& all = *testing::UnitTest::GetInstance();
  int left_out = 0;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      left_out += !suite.GetTestInfo(t)->should_run() && !suite.GetTestInfo(t)->is_in_another_shard();
  }
  std::cout << "On the GPU: " << all.successful_test_count() << " passed, " << all.failed_test_count() << " failed, "
            << all.skipped_test_count() << " skipped, " << left_out << " left out\n";
  return failed;
}
