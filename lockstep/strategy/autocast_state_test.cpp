#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <stdexcept>
#include <type_traits>

#include "tests/support/replicas.h"
#include "tests/support/run_test.h"

// Replicas inherit the caller's autocast. LibTorch's header of it includes all of ATen: nn_precision_test, which needs that anyway,
// has this file.
namespace lockstep {
namespace {

// strategy/autocast_state.cpp declares these itself. The linker sees other arguments, but no other results.
static_assert(std::is_same_v<decltype(at::autocast::is_autocast_enabled(at::kCPU)), bool>);
static_assert(std::is_same_v<decltype(at::autocast::get_autocast_dtype(at::kCPU)), at::ScalarType>);
static_assert(std::is_same_v<decltype(at::autocast::is_autocast_cache_enabled()), bool>);
static_assert(std::is_void_v<decltype(at::autocast::set_autocast_cache_enabled(true))>);
static_assert(std::is_void_v<decltype(at::autocast::clear_cache())>);

class AutocastTest : public RunTest {};

INSTANTIATE_TEST_SUITE_P(Replicas, AutocastTest, testing::Values(1, 2, 3, 4, 7));

/// Switches autocast on for the device that is tested, on this thread.
class AutocastHere {
 public:
  explicit AutocastHere(at::ScalarType type) : outer_(at::autocast::get_autocast_dtype(kDevice)) {
    at::autocast::set_autocast_dtype(kDevice, type);
    at::autocast::set_autocast_enabled(kDevice, true);
  }
  ~AutocastHere() {
    at::autocast::set_autocast_enabled(kDevice, false);
    at::autocast::set_autocast_dtype(kDevice, outer_);
    at::autocast::clear_cache();
  }
  AutocastHere(const AutocastHere&) = delete;
  AutocastHere& operator=(const AutocastHere&) = delete;

 private:
  const at::DeviceType kDevice = test_device().type();
  at::ScalarType outer_;
};

TEST_P(AutocastTest, AutocastAndItsTypeAreTheCallers) {
  const auto types = [&] {
    return strategy.run([] { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); });
  };
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const AutocastHere autocast(type);
    for (const auto seen : types()) EXPECT_EQ(seen, type);
  }
  for (const auto seen : types()) EXPECT_EQ(seen, at::kFloat);
}

TEST_P(AutocastTest, WeightsThatAutocastRemembersDoNotOutliveARunEvenOneThatFails) {
  const AutocastHere autocast(at::kBFloat16);
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&] { return at::matmul(weight, at::ones({2, 2}))[0][0].item<float>(); };
  EXPECT_THROW(strategy.run([&] {
    product();
    throw std::runtime_error("after the cast was remembered");
  }),
               std::runtime_error);
  {
    const at::NoGradGuard no_grad;
    weight.fill_(5);
  }
  for (const float seen : strategy.run(product)) EXPECT_EQ(seen, 10);
}

}  // namespace
}  // namespace lockstep
