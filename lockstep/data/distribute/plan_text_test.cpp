// What plans say to people: who reads what and why, and how many rows that are.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/distribute/distribute_test_support.h"
#include "lockstep/data/files/reader_stage.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stages/batch.h"
#include "lockstep/data/stages/cache.h"
#include "lockstep/data/stages/combine.h"
#include "lockstep/data/stages/filter.h"
#include "lockstep/data/stages/map.h"
#include "lockstep/data/stages/nested.h"
#include "lockstep/data/stages/order.h"
#include "lockstep/data/stages/padded_batch.h"
#include "lockstep/data/stages/prefetch.h"
#include "lockstep/data/stages/sources.h"

namespace lockstep::data {
namespace {

using enum AutoShardPolicy;

StagePtr names(std::vector<std::string> list) { return make_slices(Element({Strings(std::move(list))})); }

StagePtr batched(const StagePtr& rows, std::int64_t size, bool drop_remainder = false) {
  return std::make_shared<BatchStage>(rows, size, BatchOptions{.drop_remainder = drop_remainder});
}

std::string plan_of(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                    const ClusterShape& cluster) {
  return to_string(plan_input(dataset, policy, assignment, cluster));
}

// ---- one worker

TEST(PlanOfOneWorker, ReadsNaturally) {
  const StagePtr files = make_text_line_stage(names({"a", "b"}), {});
  const StagePtr filtered =
      std::make_shared<FilterStage>(batched(make_range(0, 26), 10), [](const Element&) { return true; });
  struct Row {
    StagePtr dataset;
    AutoShardPolicy policy;
    int replicas;
    const char* text;
  };
  const Row kTable[] = {
      {batched(make_range(0, 26), 10), Auto, 4,
       "1 worker of 4 replicas, batches of 10, ceil split (AUTO: range has no files)\n"
       "worker 0 of 1: everything, 26 rows\n"},
      {batched(make_range(0, 1), 4), Data, 2,
       "1 worker of 2 replicas, batches of 4, ceil split (DATA)\nworker 0 of 1: everything, 1 row\n"},
      {batched(make_range(0, 26), 10, true), Off, 2,
       "1 worker of 2 replicas, batches of 10, balanced stream (OFF)\nworker 0 of 1: everything, 20 rows\n"},
      {batched(make_range(0, 8), 4), File, 2,
       "1 worker of 2 replicas, batches of 4, balanced stream (FILE)\nworker 0 of 1: everything, 8 rows\n"},
      {batched(make_range(0, 8), 4), Hint, 2,
       "1 worker of 2 replicas, batches of 4, balanced stream (HINT)\nworker 0 of 1: everything, 8 rows\n"},
      {batched(std::make_shared<ShardStage>(make_range(0, 8), kShardHint, kShardHint), 4), Hint, 2,
       "1 worker of 2 replicas, batches of 4, balanced stream (HINT)\nworker 0 of 1: everything, 8 rows\n"},
      {batched(files, 4), Auto, 2,
       "1 worker of 2 replicas, batches of 4, balanced stream (AUTO: the data comes from files)\n"
       "worker 0 of 1: everything, rows unknown until read\n"},
      {batched(make_range(0, 26), 10), Auto, 1,
       "1 worker of 1 replica, batches as they are\nworker 0 of 1: everything, 26 rows\n"},
      {make_range(0, 5), Auto, 1, "1 worker of 1 replica, batches as they are\nworker 0 of 1: everything, 5 rows\n"},
      {filtered, Auto, 2,
       "1 worker of 2 replicas, batches of 10, ceil split (AUTO: range has no files)\n"
       "worker 0 of 1: everything, rows unknown until read\n"},
  };
  for (const Row& row : kTable) {
    for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
      EXPECT_EQ(plan_of(row.dataset, row.policy, assignment, {1, row.replicas, 0}), row.text);
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
            "worker 0 of 2: everything (HINT), 9 rows\n"
            "worker 1 of 2: everything (HINT), 9 rows\n");
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
            "2 workers of 1 replica, batches of 4, balanced stream\n"
            "worker 0 of 2: piece 0 of every step's 2 (ByReplica), 5 rows\n"
            "worker 1 of 2: piece 1 of every step's 2 (ByReplica), 4 rows\n");
  EXPECT_FALSE(fallback_warning(by_replica));
}

TEST(PlanOfHints, WithAShardSaysWhichElements) {
  const StagePtr dataset = batched(std::make_shared<ShardStage>(make_range(0, 7), kShardHint, kShardHint), 4);
  EXPECT_EQ(plan_of(dataset, Hint, Assignment::TensorFlow, {2, 1, 1}),
            "2 workers of 1 replica, batches of 4, balanced stream\n"
            "worker 0 of 2: elements 0,2,4,6 (HINT), 4 rows\n"
            "worker 1 of 2: elements 1,3,5 (HINT), 3 rows\n");
  EXPECT_EQ(plan_of(dataset, Hint, Assignment::ByReplica, {2, 1, 1}),
            "2 workers of 1 replica, batches of 4, balanced stream; shard(kShardHint, kShardHint) keeps everything, "
            "because pieces are shared out\n"
            "worker 0 of 2: piece 0 of every step's 2 (ByReplica), 4 rows\n"
            "worker 1 of 2: piece 1 of every step's 2 (ByReplica), 3 rows\n");
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
    const StagePtr dataset = std::make_shared<BatchStage>(make_text_line_stage(names, {}), 96);
    return to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {workers, 1, 1}));
  };
  EXPECT_NE(plan_of(20, 2).find("worker 1 of 2: files 1,3,5,7,9,11,13,15,17,19 (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(400, 2).find("worker 1 of 2: one file in 2, from file 1 on (FILE)"), std::string::npos);
  EXPECT_NE(plan_of(1500, 3).find("worker 0 of 3: one file in 3, from file 0 on (FILE)"), std::string::npos);
}

TEST(InputPlan, SaysWhoReadsWhichFiles) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c", "d", "e", "f", "g", "h"})}));
  const StagePtr dataset = std::make_shared<BatchStage>(make_text_line_stage(names, {}), 96);
  const InputPlan plan = plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {3, 1, 1});
  EXPECT_EQ(to_string(plan),
            "3 workers of 1 replica, batches of 96, balanced stream\n"
            "worker 0 of 3: files 0,3,6 (FILE), rows unknown until read\n"
            "worker 1 of 3: files 1,4,7 (FILE), rows unknown until read\n"
            "worker 2 of 3: files 2,5 (FILE), rows unknown until read\n");
  EXPECT_EQ(to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, {2, 2, 1})),
            "2 workers of 2 replicas, batches of 96, balanced stream; every worker goes through all files\n"
            "worker 0 of 2: pieces 0,1 of every step's 4 (ByReplica), rows unknown until read\n"
            "worker 1 of 2: pieces 2,3 of every step's 4 (ByReplica), rows unknown until read\n");
  for (int worker = 0; worker < 9; ++worker) {
    const ClusterShape nine{9, 1, worker};
    EXPECT_THROW(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, nine), InvalidArgument);
    EXPECT_NO_THROW(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, nine)) << "nobody lacks rows";
  }
}

TEST(InputPlan, WarnsWhereRowsAreComputedAndThrownAway) {
  const auto warning = [](const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment, int workers) {
    return fallback_warning(plan_input(dataset, policy, assignment, {workers, 1, 0})).value_or("");
  };
  const auto same_spec = [](const ElementSpec& spec) { return spec; };
  const auto mapped = [&](const StagePtr& input, int calls = 0) {
    return std::make_shared<MapStage>(
        input, [](Element&) {}, ElementSpec::unknown(1), MapOptions{.parallel_calls = calls, .spec = same_spec});
  };
  const StagePtr rows = make_range(0, 40);
  const StagePtr batches = std::make_shared<BatchStage>(rows, 8);
  const StagePtr filtered = std::make_shared<FilterStage>(rows, [](const Element&) { return true; });
  const StagePtr generated = std::make_shared<GeneratorStage>([] { return [](Element&) { return false; }; },
                                                              rows->element_spec(), GeneratorOptions{});

  // By TensorFlow's rules every worker reads everything that is not in files.
  const std::string text = warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 3);
  for (const char* part : {"range has no files", "distribute_from_function", "3 workers", "1/3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(warning(batches, AutoShardPolicy::Data, Assignment::TensorFlow, 3), "");
  EXPECT_EQ(warning(batches, AutoShardPolicy::Auto, Assignment::TensorFlow, 1), "");

  // By replica only if the rows of others cannot be left out.
  struct Case {
    StagePtr dataset;
    const char* named;  // nullptr: no warning
  };
  const Case cases[] = {
      {batches, nullptr},
      {std::make_shared<BatchStage>(mapped(std::make_shared<ShuffleStage>(rows, 10)), 8), nullptr},
      {std::make_shared<OptionsStage>(std::make_shared<BatchStage>(std::make_shared<RepeatStage>(rows, 2), 8),
                                      DatasetOptions{}),
       nullptr},
      {mapped(batches), "and map cannot pass over"},
      {std::make_shared<RepeatStage>(batches, 2), "and repeat cannot"},
      {std::make_shared<BatchStage>(mapped(rows, 2), 8), "and parallel_map cannot"},
      {std::make_shared<BatchStage>(filtered, 8), "and filter cannot"},
      {std::make_shared<BatchStage>(std::make_shared<ShuffleStage>(filtered, 10), 8), "and shuffle cannot"},
      {std::make_shared<BatchStage>(generated, 8), "because from_generator has no files"},
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

TEST(InputPlan, WarnsWhereRowsOfFilesAreSharedOutForAFunction) {
  const StagePtr names = make_slices(Element({Strings({"a", "b", "c"})}));
  const StagePtr lines = make_text_line_stage(names, {});
  const StagePtr doubled = std::make_shared<InterleaveStage>(
      lines,
      [](Element&& line) {
        return make_slices(Element({Strings({line.bytes(0), line.bytes(0)})}));
      },
      lines->element_spec(), std::nullopt, nullptr);
  const auto warning = [](const StagePtr& rows, AutoShardPolicy policy, Assignment assignment) {
    return fallback_warning(plan_input(std::make_shared<BatchStage>(rows, 4), policy, assignment, {2, 1, 0}))
        .value_or("");
  };
  for (const AutoShardPolicy policy : {AutoShardPolicy::Auto, AutoShardPolicy::File}) {
    const std::string text = warning(doubled, policy, Assignment::TensorFlow);
    for (const char* part : {"flat_map", "2 workers reads all files and keeps 1/2", "unbatch"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
    EXPECT_EQ(warning(lines, policy, Assignment::TensorFlow), "");
  }
}

TEST(InputPlan, WritesThousands) {
  EXPECT_EQ(with_thousands(4096), "4,096");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(with_thousands(-123), "-123");
}

// ---- rows

TEST(PlanOfFiles, TellsTheRowsOfEachWorkerWhereThatIsQuick) {
  const Folder folder("rows");
  std::vector<std::string> text, fixed, records, gzip;
  for (int i = 0; i < 5; ++i) {
    text.push_back(folder / str("text", i));
    fixed.push_back(folder / str("fixed", i));
    records.push_back(folder / str("records", i));
    gzip.push_back(folder / str("gzip", i));
    std::ofstream lines(text.back()), bytes(fixed.back());
    TFRecordWriter writer(records.back()), packed(gzip.back(), Compression::Gzip);
    for (int row = 0; row < 10 * i + 500; ++row) {
      lines << row << '\n';
      bytes << "1234";
      writer.write("record");
      packed.write("record");
    }
    writer.close();
    packed.close();
  }
  const StagePtr readers[] = {
      make_text_line_stage(names(text), {}), make_fixed_length_stage(names(fixed), {.record_bytes = 4}),
      make_tfrecord_stage(names(records), {}), make_tfrecord_stage(names(gzip), {.compression = Compression::Gzip}),
      make_text_line_stage(std::make_shared<ShuffleStage>(names(text), 5), {})};
  for (const StagePtr& reader : readers) {
    const StagePtr dataset = batched(std::make_shared<ShuffleStage>(reader, 10), 100);
    const std::string by_file =
        to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {2, 1, 0}));
    EXPECT_NE(by_file.find("worker 0 of 2: files 0,2,4 (FILE), 1,560 rows\n"), std::string::npos) << by_file;
    EXPECT_NE(by_file.find("worker 1 of 2: files 1,3 (FILE), 1,040 rows\n"), std::string::npos) << by_file;
    const std::string by_replica =
        to_string(plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, {2, 1, 0}));
    EXPECT_NE(by_replica.find("piece 0 of every step's 2 (ByReplica), 1,300 rows\n"), std::string::npos) << by_replica;
    const std::string off = to_string(plan_input(dataset, AutoShardPolicy::Off, Assignment::TensorFlow, {2, 1, 0}));
    EXPECT_NE(off.find("worker 1 of 2: everything (OFF), 2,600 rows\n"), std::string::npos) << off;
  }
}

TEST(PlanOfFiles, SaysIfNobodyKnowsTheRows) {
  const Folder folder("unknown_rows");
  const std::string damaged = folder / "damaged", good = folder / "good";
  std::ofstream(damaged) << "this is no record";
  TFRecordWriter(good).close();
  std::ofstream(folder / "text") << "1\n2\n";
  const StagePtr lines = make_text_line_stage(names({folder / "text", folder / "text"}), {});
  const StagePtr filtered = std::make_shared<FilterStage>(lines, [](const Element&) { return true; });
  const StagePtr cut_off = make_tfrecord_stage(names({good, damaged}), {});
  const StagePtr missing = make_text_line_stage(names({folder / "none", folder / "text"}), {});
  for (const StagePtr& rows : {filtered, cut_off, missing}) {
    const std::string plan =
        to_string(plan_input(batched(rows, 4), AutoShardPolicy::Auto, Assignment::TensorFlow, {2, 1, 0}));
    EXPECT_NE(plan.find("worker 1 of 2: file 1 (FILE), rows unknown until read\n"), std::string::npos) << plan;
  }
  const StagePtr endless = std::make_shared<RepeatStage>(make_range(0, 5), -1);
  const std::string plan =
      to_string(plan_input(batched(endless, 4), AutoShardPolicy::Auto, Assignment::ByReplica, {1, 1, 0}));
  EXPECT_NE(plan.find("worker 0 of 1: everything, without end\n"), std::string::npos) << plan;
}

TEST(PlanOfFiles, OfTwoSourcesNamesBoth) {
  const StagePtr both = std::make_shared<ConcatenateStage>(make_text_line_stage(names({"a", "b", "c"}), {}),
                                                           make_text_line_stage(names({"d", "e"}), {}));
  const std::string plan = plan_of(batched(both, 4), Auto, Assignment::TensorFlow, {2, 1, 0});
  EXPECT_NE(plan.find("worker 0 of 2: files 0,2 of source 0 and file 0 of source 1 (FILE), "), std::string::npos)
      << plan;
}

struct Named {
  const char* name;
  StagePtr dataset;
};

/// Batches whose numbers of rows can be told beforehand.
std::vector<Named> countable_pipelines() {
  const auto range = [](std::int64_t rows) { return make_range(0, rows); };
  const auto padded = [](const StagePtr& rows, std::int64_t size) {
    return std::make_shared<PaddedBatchStage>(rows, size, PaddedBatchOptions{});
  };
  const auto repeat = [](const StagePtr& stage, std::int64_t n) { return std::make_shared<RepeatStage>(stage, n); };
  const auto take = [](const StagePtr& stage, std::int64_t n) { return std::make_shared<TakeStage>(stage, n); };
  const auto skip = [](const StagePtr& stage, std::int64_t n) { return std::make_shared<SkipStage>(stage, n); };
  const auto shuffle = [](const StagePtr& stage) { return std::make_shared<ShuffleStage>(stage, 5); };
  const auto shard = [](const StagePtr& stage, int n, int i) { return std::make_shared<ShardStage>(stage, n, i); };
  const auto join = [](const StagePtr& a, const StagePtr& b) { return std::make_shared<ConcatenateStage>(a, b); };
  return {
      {"batch", batched(range(23), 5)},
      {"batch, drop", batched(range(23), 5, true)},
      {"padded_batch", padded(range(23), 5)},
      {"repeat of batches", repeat(batched(range(23), 5), 3)},
      {"repeat of padded batches", repeat(padded(range(13), 5), 2)},
      {"repeat below", batched(repeat(range(23), 3), 5)},
      {"repeat twice", repeat(repeat(batched(range(7), 5), 2), 3)},
      {"no repeat", repeat(batched(range(23), 5), 0)},
      {"take of batches", take(batched(range(23), 5), 3)},
      {"take of more", take(batched(range(23), 5), 30)},
      {"take of a repeat", take(repeat(batched(range(23), 5), 4), 7)},
      {"take of an endless one", take(repeat(batched(range(7), 5), -1), 5)},
      {"take of endless rows", take(batched(repeat(range(7), -1), 5), 5)},
      {"skip of batches", skip(batched(range(23), 5), 4)},
      {"skip of a repeat", skip(repeat(batched(range(7), 5), 3), 3)},
      {"skip of all", skip(batched(range(7), 5), -1)},
      {"shard of batches", shard(batched(range(23), 5), 2, 0)},
      {"shard of a repeat", shard(repeat(batched(range(7), 5), 4), 3, 1)},
      {"shard of rows", batched(shard(range(23), 3, 1), 5)},
      {"concatenate", join(batched(range(7), 5), batched(range(9), 5))},
      {"concatenate of other sizes", join(batched(range(7), 5), repeat(batched(range(9), 4), 2))},
      {"shuffle of batches", shuffle(batched(range(23), 5))},
      {"repeat of shuffled batches", repeat(shuffle(batched(range(23), 5)), 2)},
      {"cache", repeat(std::make_shared<CacheStage>(batched(range(23), 5)), 2)},
      {"prefetch", std::make_shared<PrefetchStage>(batched(range(23), 5), 2)},
      {"batches of batches", batched(batched(range(23), 5, true), 3)},
      {"rows of a matrix", make_slices(Element::of(at::ones({5, 4}, at::kLong)))},
      {"nothing", batched(range(0), 5)},
  };
}

TEST(PlannedRows, AreThoseThatEachWorkerGets) {
  for (const Named& pipeline : countable_pipelines()) {
    for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
      for (const AutoShardPolicy policy : {Data, Off, Hint}) {
        for (const ClusterShape& shape : {ClusterShape{1, 1}, {1, 3}, {2, 1}, {3, 2}}) {
          for (int worker = 0; worker < shape.workers; ++worker) {
            const ClusterShape cluster{shape.workers, shape.replicas_per_worker, worker};
            const InputPlan plan = plan_input(pipeline.dataset, policy, assignment, cluster);
            const auto source = plan.make_source(kContext);
            std::int64_t rows = 0, empty = 0;
            while (true) {
              const InputStep step = source->next();
              if (step.local_values() == 0 && (step.total.value_or(0) == 0 || ++empty > 1000)) break;
              for (const auto& element : step.elements) rows += element ? element->tensor(0).size(0) : 0;
            }
            EXPECT_EQ(rows_in_plan(plan), str(rows, rows == 1 ? " row" : " rows"))
                << pipeline.name << ", " << lockstep::to_string(policy) << '\n'
                << to_string(plan);
          }
        }
      }
    }
  }
}

TEST(PlannedRows, WithoutEndAndUnknown) {
  const StagePtr endless = batched(std::make_shared<RepeatStage>(make_range(0, 7), -1), 5);
  const StagePtr twice = std::make_shared<ShuffleStage>(batched(make_range(0, 7), 5), 3);
  const StagePtr some = std::make_shared<TakeStage>(twice, 1);  // of 5 rows or of 2
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    for (const AutoShardPolicy policy : {Auto, Data, Off}) {
      EXPECT_NE(plan_of(endless, policy, assignment, {2, 2, 0}).find(", without end\n"), std::string::npos);
      EXPECT_NE(plan_of(some, policy, assignment, {2, 2, 0}).find(", rows unknown until read\n"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lockstep::data
