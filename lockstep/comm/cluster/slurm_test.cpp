#include <gtest/gtest.h>

#include "lockstep/comm/cluster/slurm_resolver.h"
#include "tests/support/expect_error.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;
using Hosts = std::vector<std::string>;

Environment environment(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Variables step(const char* rank, const char* tasks, const char* hosts, const char* per_node) {
  return {{"SLURM_PROCID", rank},
          {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_STEP_NODELIST", hosts},
          {"SLURM_STEP_TASKS_PER_NODE", per_node}};
}

TEST(HostList, KeepsOrderAndPadding) {
  const struct {
    const char* list;
    Hosts hosts;
  } table[] = {
      {"", {}},
      {"n1", {"n1"}},
      {"n-1,n_2", {"n-1", "n_2"}},
      {"z,a,z", {"z", "a", "z"}},
      {"n[9-11]", {"n9", "n10", "n11"}},
      {"n[009-011]", {"n009", "n010", "n011"}},
      {"n[08-10,7,003],gpu5", {"n08", "n09", "n10", "n7", "n003", "gpu5"}},
      {"n[99-101,099-101]", {"n99", "n100", "n101", "n099", "n100", "n101"}},
      {"[1-2]", {"1", "2"}},
      {"n[3-1]", {}},
      {"n[0-0]", {"n0"}},
      {"a,", {"a"}},
  };
  for (const auto& [list, hosts] : table) EXPECT_EQ(expand_hostlist(list), hosts) << list;
}

TEST(HostList, OfAnotherFormIsRefusedWithThePlace) {
  for (const char* list : {",a",
                           "a,,b",
                           ",",
                           "n[1-2",
                           "n]1",
                           "n[]",
                           "n[1,]",
                           "n[,1]",
                           "n[-1]",
                           "n[1-]",
                           "n[1-2-3]",
                           "n[a-b]",
                           "n[1-2]x",
                           "n[1-2]m[3-4]",
                           "n[[1]]",
                           "n[1 - 2]",
                           "a, b",
                           "n[+1]",
                           "n[0x1]",
                           "n[0-99999999]",
                           "n[99999999999999999999]",
                           "n[0-9223372036854775807]",
                           "n[1-90000],m[1-90000]",
                           "n[1-90000,1-90000]"}) {
    expect_error([&] { expand_hostlist(list); }, Code::InvalidArgument, errors::kSlurm,
                 {"gpu5,node[01-03,7]", "character "}, list);
  }
}

TEST(TasksPerNode, AreCountedOut) {
  EXPECT_EQ(expand_tasks_per_node("3(x2),2,1"), (std::vector<int>{3, 3, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("3(x0),1"), (std::vector<int>{1}));
  for (const char* list :
       {"", "x", "3(x)", "3(x2", "3x2", "3 (x2)", " 3", "-1", "+1", "1,,2", "1,", "3(x-1)", "3(y2)", "1(x999999999)",
        "1(x9223372036854775807)", "1,1(x9223372036854775807)", "99999999999999999999", "1(x2)(x2)"}) {
    expect_error([&] { expand_tasks_per_node(list); }, Code::InvalidArgument, errors::kSlurm, {"3(x2),1", "character "},
                 list);
  }
}

TEST(Slurm, NumbersTasksHostAfterHost) {
  const auto plan = plan_slurm({}, environment(step("3", "5", "n[9-10]", "3,2")));
  EXPECT_EQ(to_string(plan.cluster), R"({"worker":["n9:8888","n9:8889","n9:8890","n10:8888","n10:8889"]})");
  EXPECT_EQ(plan.task_type, "worker");
  EXPECT_EQ(plan.task_index, 3);
  EXPECT_EQ(plan.gpus_per_task, 0);
}

TEST(Slurm, DividesTasksAmongJobs) {
  const auto plan = plan_slurm({.jobs = {{"chief", 1}, {"ps", 0}, {"worker", 2}}, .port_base = 100},
                               environment(step("2", "3", "a,b", "2,1")));
  EXPECT_EQ(to_string(plan.cluster), R"({"chief":["a:100"],"ps":[],"worker":["a:101","b:100"]})");
  EXPECT_EQ(plan.task_index, 1);
}

TEST(Slurm, GivesEveryTaskOfAHostItsOwnGpus) {
  auto variables = step("1", "2", "n1", "2");
  variables["CUDA_VISIBLE_DEVICES"] = "0,1,2,3";
  auto plan = plan_slurm({}, environment(variables));
  EXPECT_EQ(plan.gpus_per_task, 2);
  EXPECT_EQ(plan.first_gpu, 2);
  EXPECT_EQ(plan_slurm({.gpus_per_task = 0}, environment(variables)).gpus_per_task, 0);
  variables["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(plan_slurm({}, environment(variables)).gpus_per_task, 0);
  variables.erase("CUDA_VISIBLE_DEVICES");
  variables["SLURM_GPUS_ON_NODE"] = "2";
  EXPECT_EQ(plan_slurm({}, environment(variables)).gpus_per_task, 1);
}

TEST(Slurm, RefusesWhatContradictsItself) {
  const Variables good = step("1", "3", "a,b", "2,1");
  const auto changed = [&](const char* name, const char* value) {
    Variables variables = good;
    variables[name] = value;
    return variables;
  };
  const struct {
    Variables variables;
    SlurmOptions options;
    Code code;
    std::vector<std::string> fragments;
  } table[] = {
      {changed("SLURM_PROCID", "x"), {}, Code::InvalidArgument, {"SLURM_PROCID", "got 'x'"}},
      {changed("SLURM_PROCID", "-1"), {}, Code::InvalidArgument, {"SLURM_PROCID"}},
      {changed("SLURM_PROCID", "3"), {}, Code::InvalidArgument, {"less than the 3 tasks"}},
      {changed("SLURM_PROCID", "99999999999999999999"), {}, Code::InvalidArgument, {"SLURM_PROCID"}},
      {changed("SLURM_STEP_NUM_TASKS", ""), {}, Code::InvalidArgument, {"SLURM_STEP_NUM_TASKS"}},
      {changed("SLURM_STEP_NUM_TASKS", "4"), {}, Code::FailedPrecondition, {"need 4 tasks", "step has 3"}},
      {changed("SLURM_STEP_NODELIST", ""), {}, Code::InvalidArgument, {"no tasks on any host"}},
      {changed("SLURM_STEP_NODELIST", "a"), {}, Code::FailedPrecondition, {"step has 2"}},
      {changed("SLURM_STEP_NODELIST", "a,a"), {}, Code::FailedPrecondition, {"step has 1"}},
      {changed("SLURM_STEP_TASKS_PER_NODE", "0(x2)"), {}, Code::InvalidArgument, {"no tasks on any host"}},
      {changed("SLURMD_NODENAME", "b"), {}, Code::FailedPrecondition, {"runs on host b", "--distribution=block"}},
      {changed("CUDA_VISIBLE_DEVICES", "0"), {}, Code::InvalidArgument, {"1 GPU, fewer than its 2 tasks"}},
      {good, {.port_base = 65'535}, Code::InvalidArgument, {"port_base 65535"}},
      {good, {.port_base = 0}, Code::InvalidArgument, {"port_base 0"}},
      {good, {.gpus_per_node = 3, .gpus_per_task = 2}, Code::FailedPrecondition, {"more than the 3 GPUs"}},
      {good, {.gpus_per_task = -1}, Code::InvalidArgument, {"must be >= 0"}},
      {good, {.jobs = {{"worker", 2}}}, Code::FailedPrecondition, {"need 2 tasks"}},
      {good, {.jobs = {{"chief", -1}, {"worker", 4}}}, Code::InvalidArgument, {"chief must have >= 0 tasks"}},
  };
  EXPECT_NO_THROW(plan_slurm({}, environment(good)));
  for (const auto& [variables, options, code, fragments] : table) {
    expect_error([&] { plan_slurm(options, environment(variables)); }, code, errors::kSlurm, fragments, fragments[0]);
  }
}

TEST(Slurm, NamesTheVariableThatIsMissing) {
  const Variables good = step("0", "1", "a", "1");
  for (const auto& [name, value] : good) {
    Variables variables = good;
    variables.erase(name);
    expect_error([&] { plan_slurm({}, environment(variables)); }, Code::FailedPrecondition, errors::kSlurm,
                 {name + " is not set", "srun"}, name);
  }
}

}  // namespace
}  // namespace lockstep
