// The text of plans: which worker reads what and why.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"
#include "tests/support/file_stages.h"

namespace lockstep::data {
namespace {

using enum AutoShardPolicy;

StagePtr names(std::vector<std::string> list) { return make_slices(Element({Strings(std::move(list))})); }

StagePtr batched(const StagePtr& rows, std::int64_t size, bool drop_remainder = false) {
  return make_batch(rows, size, BatchOptions{.drop_remainder = drop_remainder});
}

std::string plan_of(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                    const ClusterShape& cluster) {
  return to_string(plan_input(dataset, policy, assignment, cluster));
}

// ---- one worker

TEST(PlanOfOneWorker, ReadsNaturally) {
  const StagePtr files = make_text_line_stage(names({"a", "b"}), {});
  const StagePtr filtered = make_filter(batched(make_range(0, 26), 10), [](const Element&) { return true; });
  const StagePtr mapped = make_map(
      batched(make_range(0, 26), 10), [](Element&) {}, ElementSpec::unknown(1), MapOptions{});
  struct Row {
    StagePtr dataset;
    AutoShardPolicy policy;
    int replicas;
    const char *by_replica, *tensorflows;
  };
  const StagePtr hinted = make_shard(make_range(0, 8), kShardHint, kShardHint);
  const Row kTable[] = {
      {batched(make_range(0, 26), 10), Auto, 4, "4 replicas, batches of 10, cut evenly",
       "4 replicas, batches of 10, ceil split (AUTO: range has no files)"},
      {batched(make_range(0, 1), 4), Data, 2, "2 replicas, batches of 4, cut evenly",
       "2 replicas, batches of 4, ceil split (DATA)"},
      {batched(make_range(0, 26), 10, true), Off, 2, "2 replicas, batches of 10, cut evenly",
       "2 replicas, batches of 10, balanced stream (OFF)"},
      {batched(make_range(0, 8), 4), File, 2, "2 replicas, batches of 4, cut evenly",
       "2 replicas, batches of 4, balanced stream (FILE)"},
      {batched(make_range(0, 8), 4), Hint, 2, "2 replicas, batches of 4, cut evenly",
       "2 replicas, batches of 4, balanced stream (HINT)"},
      {batched(hinted, 4), Hint, 2, "2 replicas, batches of 4, cut evenly",
       "2 replicas, batches of 4, balanced stream (HINT)"},
      {batched(files, 4), Auto, 2, "2 replicas, batches of 4, cut evenly",
       "2 replicas, batches of 4, balanced stream (AUTO: the data comes from files)"},
      {batched(make_range(0, 26), 10), Auto, 1, "1 replica, batches as they are", "1 replica, batches as they are"},
      {make_range(0, 5), Auto, 1, "1 replica, batches as they are", "1 replica, batches as they are"},
      {filtered, Auto, 2, "2 replicas, batches of 10, cut evenly",
       "2 replicas, batches of 10, ceil split (AUTO: range has no files)"},
      {mapped, Auto, 2, "2 replicas, batches of unknown size, cut evenly",
       "2 replicas, batches of unknown size, ceil split"},
  };
  for (const Row& row : kTable) {
    for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
      const char* const text = assignment == Assignment::ByReplica ? row.by_replica : row.tensorflows;
      EXPECT_EQ(plan_of(row.dataset, row.policy, assignment, {1, row.replicas, 0}),
                str("1 worker of ", text, "\nworker 0 of 1: everything\n"));
    }
  }
}

// ---- policies

TEST(PlanOfHints, WithoutAShardSaysThatEverybodyReadsEverything) {
  const StagePtr dataset = batched(make_range(0, 9), 4);
  const InputPlan plan = plan_input(dataset, Hint, Assignment::TensorFlow, {2, 1, 0});
  EXPECT_EQ(to_string(plan),
            "2 workers of 1 replica, batches of 4, balanced stream; every worker reads everything, because there is no "
            "shard(kShardHint, kShardHint)\n"
            "worker 0 of 2: everything (HINT)\n"
            "worker 1 of 2: everything (HINT)\n");
  const std::string warning = fallback_warning(plan).value_or("");
  for (const char* part : {"no shard(kShardHint, kShardHint)", "2 workers gets every row", "AutoShardPolicy::Off"})
    EXPECT_NE(warning.find(part), std::string::npos) << warning;
  for (int worker = 0; worker < 2; ++worker) {
    const auto source = plan_input(dataset, Hint, Assignment::TensorFlow, {2, 1, worker}).make_source(kContext);
    std::int64_t rows = 0;
    while (true) {
      const InputStep step = source->next();
      if (step.local_values() == 0) break;
      rows += std::ssize(rows_in(*step.elements[0]));
    }
    EXPECT_EQ(rows, 9) << "it is true";
  }
  const InputPlan by_replica = plan_input(dataset, Hint, Assignment::ByReplica, {2, 1, 0});
  EXPECT_EQ(to_string(by_replica),
            "2 workers of 1 replica, batches of 4, cut evenly\n"
            "worker 0 of 2: piece 0 of every step's 2 (ByReplica)\n"
            "worker 1 of 2: piece 1 of every step's 2 (ByReplica)\n");
  EXPECT_FALSE(fallback_warning(by_replica));
}

TEST(PlanOfHints, WithAShardSaysWhichElements) {
  const StagePtr dataset = batched(make_shard(make_range(0, 7), kShardHint, kShardHint), 4);
  EXPECT_EQ(plan_of(dataset, Hint, Assignment::TensorFlow, {2, 1, 1}),
            "2 workers of 1 replica, batches of 4, balanced stream\n"
            "worker 0 of 2: elements 0,2,4,6 (HINT)\n"
            "worker 1 of 2: elements 1,3,5 (HINT)\n");
  EXPECT_EQ(plan_of(dataset, Hint, Assignment::ByReplica, {2, 1, 1}),
            "2 workers of 1 replica, batches of 4, cut evenly; shard(kShardHint, kShardHint) keeps everything, "
            "because pieces are shared out\n"
            "worker 0 of 2: piece 0 of every step's 2 (ByReplica)\n"
            "worker 1 of 2: piece 1 of every step's 2 (ByReplica)\n");
}

TEST(PlanByFile, WithoutFilesIsAnErrorOnEveryWorkerByBothAssignments) {
  const StagePtr dataset = batched(make_range(0, 100), 8);
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    for (int worker = 0; worker < 3; ++worker) {
      const ClusterShape cluster{3, 1, worker};
      EXPECT_THROW(plan_input(dataset, File, assignment, cluster), NotFound);
      const std::string error = error_of([&] { plan_input(dataset, File, assignment, cluster); });
      for (const char* part : {"cannot be shared out by file", "range has no files", "AutoShardPolicy::Data"})
        EXPECT_NE(error.find(part), std::string::npos) << error;
    }
    EXPECT_NO_THROW(plan_input(dataset, File, assignment, {1, 3, 0})) << "as in TensorFlow";
  }
}

TEST(PlanByFile, TooFewFilesAreAnErrorAtOnceOnlyWhereTheyAreSharedOut) {
  const StagePtr dataset = batched(make_text_line_stage(names({"a", "b"}), {}), 8);
  for (const AutoShardPolicy policy : {Auto, File}) {
    for (int worker = 0; worker < 3; ++worker) {
      const std::string error = error_of([&] { plan_input(dataset, policy, Assignment::TensorFlow, {3, 1, worker}); });
      EXPECT_NE(error.find("not enough files for 3 workers"), std::string::npos) << error;
      EXPECT_NE(error.find("switch sharding off"), std::string::npos) << error;
      EXPECT_NO_THROW(plan_input(dataset, policy, Assignment::ByReplica, {3, 1, worker}));
    }
  }
}

TEST(InputPlan, SaysInFewWordsWhoReadsWhichOfManyFiles) {
  const auto plan_of = [](std::size_t files, int workers) {
    const StagePtr names = make_slices(Element({Strings(std::vector<std::string>(files, "a"))}));
    const StagePtr dataset = make_batch(make_text_line_stage(names, {}), 96);
    return to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {workers, 1, 1}));
  };
  EXPECT_NE(plan_of(20, 2).find("worker 1 of 2: files 1,3,5,7,9,11,13,15,17,19 (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(400, 2).find("worker 1 of 2: one file in 2, from file 1 on (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(1500, 3).find("worker 0 of 3: one file in 3, from file 0 on (FILE)"), std::string::npos);
}

TEST(InputPlan, SaysWhoReadsWhichFiles) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c", "d", "e", "f", "g", "h"})}));
  const StagePtr dataset = make_batch(make_text_line_stage(names, {}), 96);
  const InputPlan plan = plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {3, 1, 1});
  EXPECT_EQ(to_string(plan),
            "3 workers of 1 replica, batches of 96, balanced stream\n"
            "worker 0 of 3: files 0,3,6 (FILE)\n"
            "worker 1 of 3: files 1,4,7 (FILE)\n"
            "worker 2 of 3: files 2,5 (FILE)\n");
  EXPECT_EQ(to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, {2, 2, 1})),
            "2 workers of 2 replicas, batches of 96, cut evenly; every worker goes through all files\n"
            "worker 0 of 2: pieces 0,1 of every step's 4 (ByReplica)\n"
            "worker 1 of 2: pieces 2,3 of every step's 4 (ByReplica)\n");
  for (int worker = 0; worker < 9; ++worker) {
    const ClusterShape nine{9, 1, worker};
    EXPECT_THROW(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, nine), InvalidArgument);
    EXPECT_NO_THROW(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, nine)) << "no worker lacks rows";
  }
}

TEST(InputPlan, WarnsWhereRowsAreComputedAndThrownAway) {
  const auto warning = [](const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment, int workers) {
    return fallback_warning(plan_input(dataset, policy, assignment, {workers, 1, 0})).value_or("");
  };
  const auto same_spec = [](const ElementSpec& spec) { return spec; };
  const auto mapped = [&](const StagePtr& input, int calls = 0) {
    return make_map(
        input, [](Element&) {}, ElementSpec::unknown(1), MapOptions{.parallel_calls = calls, .spec = same_spec});
  };
  const StagePtr rows = make_range(0, 40);
  const StagePtr batches = make_batch(rows, 8);
  const StagePtr filtered = make_filter(rows, [](const Element&) { return true; });
  const StagePtr generated =
      make_generator([] { return [](Element&) { return false; }; }, rows->element_spec(), GeneratorOptions{});

  // By TensorFlow's rules every worker reads everything that is not in files.
  const std::string text = warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 3);
  for (const char* part : {"range has no files", "distribute_from_function", "3 workers", "1/3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(warning(batches, AutoShardPolicy::Data, Assignment::TensorFlow, 3), "");
  EXPECT_EQ(warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 1), "");

  // By replica only if other workers' rows cannot be skipped.
  struct Case {
    StagePtr dataset;
    const char* named;  // nullptr: no warning
  };
  const Case cases[] = {
      {batches, nullptr},
      {make_batch(mapped(make_shuffle(rows, 10)), 8), nullptr},
      {make_with_options(make_batch(make_repeat(rows, 2), 8), DatasetOptions{}), nullptr},
      {mapped(batches), "and map cannot pass over"},
      {make_repeat(batches, 2), "and repeat cannot"},
      {make_batch(mapped(rows, 2), 8), "and parallel_map cannot"},
      {make_batch(filtered, 8), "and filter cannot"},
      {make_batch(make_shuffle(filtered, 10), 8), "and shuffle cannot"},
      {make_batch(generated, 8), "because from_generator has no files"},
  };
  for (const Case& c : cases) {
    const std::string seen = warning(c.dataset, AutoShardPolicy::Auto, Assignment::ByReplica, 3);
    if (c.named == nullptr) {
      EXPECT_EQ(seen, "") << print_tree(*c.dataset);
    } else {
      EXPECT_NE(seen.find(c.named), std::string::npos) << seen << '\n' << print_tree(*c.dataset);
    }
    EXPECT_EQ(warning(c.dataset, AutoShardPolicy::Data, Assignment::ByReplica, 3), "");
    EXPECT_EQ(warning(c.dataset, AutoShardPolicy::Auto, Assignment::ByReplica, 1), "");
  }
}

TEST(InputPlan, WarnsWhereAPolicyHasNoEffect) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c"})}));
  const StagePtr batches = make_batch(make_text_line_stage(names, {}), 4);
  const auto warning = [&](AutoShardPolicy policy, Assignment assignment, int workers) {
    return fallback_warning(plan_input(batches, policy, assignment, {workers, 1, 0})).value_or("");
  };
  for (const auto& [policy, name] :
       {std::pair{AutoShardPolicy::Off, "AutoShardPolicy::Off"}, {AutoShardPolicy::File, "AutoShardPolicy::File"}}) {
    const std::string text = warning(policy, Assignment::ByReplica, 2);
    for (const char* part : {name, "has no effect", "{.assignment = Assignment::TensorFlow}"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(warning(policy, Assignment::TensorFlow, 2), "");
    EXPECT_EQ(warning(policy, Assignment::ByReplica, 1), "");
  }
  EXPECT_EQ(warning(AutoShardPolicy::Auto, Assignment::ByReplica, 2), "");
}

TEST(InputPlan, WarnsWhereRowsOfFilesAreSharedOutForAFunction) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c"})}));
  const StagePtr lines = make_text_line_stage(names, {});
  const StagePtr doubled = make_interleave(
      lines,
      [](Element&& line) {
        return make_slices(Element({Strings({line.bytes(0), line.bytes(0)})}));
      },
      lines->element_spec(), std::nullopt, nullptr);
  const auto warning = [](const StagePtr& rows, AutoShardPolicy policy, Assignment assignment) {
    return fallback_warning(plan_input(make_batch(rows, 4), policy, assignment, {2, 1, 0})).value_or("");
  };
  for (const AutoShardPolicy policy : {AutoShardPolicy::Auto, AutoShardPolicy::File}) {
    const std::string text = warning(doubled, policy, Assignment::TensorFlow);
    for (const char* part : {"flat_map", "2 workers reads all files and keeps 1/2", "unbatch"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    EXPECT_EQ(warning(lines, policy, Assignment::TensorFlow), "");
  }
}

TEST(PlanOfFiles, OfTwoSourcesNamesBoth) {
  const StagePtr both =
      make_concatenate(make_text_line_stage(names({"a", "b", "c"}), {}), make_text_line_stage(names({"d", "e"}), {}));
  const std::string plan = plan_of(batched(both, 4), Auto, Assignment::TensorFlow, {2, 1, 0});
  EXPECT_NE(plan.find("worker 0 of 2: files 0,2 of source 0 and file 0 of source 1 (FILE)\n"), std::string::npos)
      << plan;
}

}  // namespace
}  // namespace lockstep::data
