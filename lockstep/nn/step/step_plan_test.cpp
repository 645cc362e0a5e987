#include "lockstep/nn/step/step_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::detail {
namespace {

struct PlanCase {
  const char* what;
  OptimizerSettings settings;
  StepRequest request;
  UpdateTraits update;
  const char* plan;
};

constexpr UpdateTraits kPlain = {};
constexpr UpdateTraits kFused = {.adds_up = true};
constexpr UpdateTraits kDevice = {.adds_up = true, .checks = true, .clips = true};
constexpr UpdateTraits kSparseOnDevice = {.adds_up = true};

OptimizerSettings with(NonFinitePolicy policy) {
  OptimizerSettings settings;
  settings.not_finite = policy;
  return settings;
}
OptimizerSettings with_norm(NonFinitePolicy policy = NonFinitePolicy::Ignore) {
  OptimizerSettings settings = with(policy);
  settings.clip_global_norm = 1.5;
  return settings;
}
OptimizerSettings with_limit() {
  OptimizerSettings settings;
  settings.clip_value = 0.5;
  return settings;
}

const std::vector<PlanCase>& plan_cases() {
  static const std::vector<PlanCase> cases = {
      {"plain class", {}, {}, kPlain, "sum: by the owner; finite: not checked; one meeting"},
      {"fused class", {}, {}, kFused, "sum: by the update; finite: not checked; one meeting"},
      {"workers", {}, {.has_workers = true}, kPlain, "sum: on the wire; finite: not checked; one meeting"},
      {"workers, fused",
       {},
       {.has_workers = true},
       kFused,
       "sum: on the wire, read by the update; finite: not checked; one meeting"},
      {"in parts", {}, {.in_parts = true}, kFused, "sum: by the owner; finite: not checked; in parts"},
      {"in parts, clips by itself",
       with_norm(),
       {.in_parts = true},
       kFused,
       "sum: by the owner; finite: not checked; in parts"},
      {"in parts, checked",
       with(NonFinitePolicy::Raise),
       {.in_parts = true},
       kFused,
       "sum: by the owner; finite: by the host; in parts"},
      {"in parts, checked on a device",
       with(NonFinitePolicy::Raise),
       {.in_parts = true},
       kDevice,
       "sum: by the owner; finite: by the device; in parts"},
      {"checked", with(NonFinitePolicy::SkipStep), {}, kFused, "sum: by the owner; finite: by the host"},
      {"checked on a device",
       with(NonFinitePolicy::SkipStep),
       {},
       kDevice,
       "sum: by the update; finite: by the device"},
      {"checked, sparse on a device",
       with(NonFinitePolicy::Raise),
       {},
       kSparseOnDevice,
       "sum: by the owner; finite: by the host"},
      {"clipped by norm", with_norm(), {}, kFused, "sum: by the owner; finite: not checked; norm at most 1.5"},
      {"clipped by norm on a device",
       with_norm(),
       {},
       kDevice,
       "sum: by the owner; finite: not checked; norm at most 1.5, on the device"},
      {"checked and clipped on a device",
       with_norm(NonFinitePolicy::Raise),
       {},
       kDevice,
       "sum: by the owner; finite: by the device; norm at most 1.5, on the device"},
      {"clipped by value", with_limit(), {}, kDevice, "sum: by the owner; finite: not checked; elements at most 0.5"},
      {"scaled by the host",
       {},
       {.scale = ScaleBy::Host},
       kFused,
       "sum: by the owner; finite: not checked; unscale: by the host"},
      {"scaled and checked by the host",
       with(NonFinitePolicy::Raise),
       {.scale = ScaleBy::Host},
       kDevice,
       "sum: by the owner; finite: not checked; unscale: by the host"},
      {"scaled on a device",
       {},
       {.scale = ScaleBy::Device},
       kDevice,
       "sum: by the owner; finite: by the device; unscale: by the device"},
      {"scaled on a device, sparse",
       {},
       {.scale = ScaleBy::Device},
       kSparseOnDevice,
       "sum: by the owner; finite: not checked; unscale: by the host"},
      {"workers, scaled on a device",
       {},
       {.has_workers = true, .scale = ScaleBy::Device},
       kDevice,
       "sum: on the wire; finite: by the device; unscale: by the device"},
  };
  return cases;
}

TEST(StepPlan, SaysWhoSumsChecksScalesAndClips) {
  for (const PlanCase& c : plan_cases())
    EXPECT_EQ(to_string(plan_step(c.settings, c.request, c.update)), c.plan) << c.what;
}

TEST(StepPlan, TheUpdateNeverSumsWhatIsChangedOrCheckedByTheHostBefore) {
  for (const PlanCase& c : plan_cases()) {
    const StepPlan plan = plan_step(c.settings, c.request, c.update);
    if (!plan.leaves_to_update) continue;
    EXPECT_TRUE(!plan.clip_norm && !plan.clip_value && plan.unscale == ScaleBy::Nobody && !c.request.in_parts)
        << c.what;
    EXPECT_NE(plan.finite, StepPlan::Finite::Host) << c.what;
  }
}

}  // namespace
}  // namespace lockstep::detail
