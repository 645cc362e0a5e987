// Decisions made before the first row is read, and side effects that deciding must not have.
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/data/stage.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"
#include "tests/support/file_stages.h"

namespace lockstep::data {
namespace {

StagePtr names(std::vector<std::string> list) { return make_slices(Element({Strings(std::move(list))})); }

StagePtr batched(const StagePtr& rows, std::int64_t size, bool drop_remainder = false) {
  return make_batch(rows, size, BatchOptions{.drop_remainder = drop_remainder});
}

struct Calls {
  std::atomic<int> function = 0, generator = 0, map = 0;
};

StagePtr reading(const StagePtr& input, Calls& calls) {
  return make_interleave(
      input,
      [&calls](Element&& element) {
        ++calls.function;
        return make_text_line_stage(make_slices(Element({Strings({element.bytes(0)})})), {});
      },
      ElementSpec{{{ComponentSpec::bytes()}}}, std::nullopt);
}

StagePtr once_only(Calls& calls) {
  return make_generator(
      [&calls]() -> Generator {
        return [&calls](Element& element) {
          if (++calls.generator > 4) return false;
          element = Element({std::string("file")});
          return true;
        };
      },
      ElementSpec{{{ComponentSpec::bytes()}}}, GeneratorOptions{});
}

StagePtr renamed(const StagePtr& input, Calls& calls) {
  return make_map(
      input, [&calls](Element&) { ++calls.map; }, ElementSpec{{{ComponentSpec::bytes()}}},
      MapOptions{.name = "rename"});
}

TEST(LookingForFiles, CallsAFunctionWithANameFromMemory) {
  const auto folder = std::filesystem::temp_directory_path() / str("lockstep_looking_", ::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "list.txt") << "a\nb\n";
  Calls calls;
  const StagePtr shuffled = make_shuffle(names({"a", "b", "c"}), 3);
  const StagePtr listed = make_text_line_stage(names({(folder / "list.txt").string()}), {});
  int asked = 0;
  for (const StagePtr& input : {names({"a", "b"}), shuffled, StagePtr(make_cache(names({"a", "b"}))), listed,
                                StagePtr(make_repeat(shuffled, 2))}) {
    const InputPlan plan =
        plan_input(batched(reading(input, calls), 4), AutoShardPolicy::Auto, Assignment::TensorFlow, {2, 1, 0});
    EXPECT_EQ(plan.shards.by, AutoShardPolicy::File) << to_string(plan);
    EXPECT_EQ(calls.function, ++asked);
  }
  std::filesystem::remove_all(folder);
}

TEST(LookingForFiles, RunsNoOtherFunctionAndNoGenerator) {
  Calls calls;
  struct Case {
    StagePtr input;
    const char* named;
  };
  const Case cases[] = {{once_only(calls), "from_generator"},
                        {make_shuffle(once_only(calls), 3), "from_generator"},
                        {renamed(names({"a", "b"}), calls), "map(rename)"},
                        {make_take(renamed(names({"a", "b"}), calls), 1), "map(rename)"}};
  for (const Case& c : cases) {
    const StagePtr dataset = batched(reading(c.input, calls), 4);
    const InputPlan plan = plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {2, 1, 0});
    EXPECT_EQ(plan.shards.by, AutoShardPolicy::Data);
    EXPECT_NE(to_string(plan).find(str("reads files cannot be seen without running ", c.named)), std::string::npos)
        << to_string(plan);
    EXPECT_NE(error_of([&] {
                plan_input(dataset, AutoShardPolicy::File, Assignment::TensorFlow, {2, 1, 0});
              }).find(c.named),
              std::string::npos);
  }
  EXPECT_EQ(calls.function, 0);
  EXPECT_EQ(calls.generator, 0);
  EXPECT_EQ(calls.map, 0);
}

TEST(LookingForFiles, ByReplicaCallsNoFunctionAtAll) {
  Calls calls;
  for (const AutoShardPolicy policy : {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data}) {
    for (const int workers : {1, 2}) {
      const InputPlan plan =
          plan_input(batched(reading(names({"a", "b"}), calls), 4), policy, Assignment::ByReplica, {workers, 2, 0});
      EXPECT_FALSE(policy == AutoShardPolicy::Auto && fallback_warning(plan)) << "the function may open files";
    }
  }
  EXPECT_EQ(calls.function, 0);
}

TEST(TooFewFiles, AreToldAlsoWhereTheElementThatTheyTakeThePlaceOfIsLeftOut) {
  const Folder folder("left_out");
  const std::string a = folder / "a.txt", b = folder / "b.txt";
  for (const std::string& file : {a, b}) std::ofstream(file) << "1\n2\n3\n4\n5\n6\n";
  const StagePtr some = make_filter(names({a, b}), [](const Element&) { return true; });
  const StagePtr rows = make_text_line_stage(some, {});
  const auto skip = [](StagePtr input) { return make_skip(std::move(input), 1); };
  // Names that are lines of a file: their number is known only once they are read.
  std::ofstream(folder / "names.txt") << a << '\n' << b << '\n';
  const auto open = [](Element&& name) {
    return make_text_line_stage(make_slices(Element({Strings({name.bytes(0)})})), {});
  };
  const StagePtr interleaved = make_interleave(make_text_line_stage(names({folder / "names.txt"}), {}), open,
                                               ElementSpec{{{ComponentSpec::bytes()}}}, InterleaveOptions{}, nullptr);
  const StagePtr two = make_filter(make_range(0, 2), [](const Element&) { return true; });
  const StagePtr hinted = make_shard(two, kShardHint, kShardHint);
  constexpr AutoShardPolicy kHint = AutoShardPolicy::Hint;
  const struct {
    const char* name;
    StagePtr dataset;
    AutoShardPolicy policy = AutoShardPolicy::File;
  } kTable[] = {
      {"hint", batched(hinted, 1), kHint},
      {"ignore_errors", batched(make_ignore_errors(hinted, IgnoreErrorsOptions{}), 1), kHint},
      {"hint skipped", batched(skip(hinted), 1), kHint},
      {"rows", batched(rows, 2)},
      {"rows skipped", batched(skip(rows), 2)},
      {"batches skipped", skip(batched(rows, 2))},
      {"shard", batched(make_shard(rows, 2, 1), 2)},
      {"interleave", batched(skip(interleaved), 2)},
      {"unbatch", batched(skip(make_unbatch(batched(rows, 2))), 2)},
      {"cache", batched(skip(make_cache(rows)), 2)},
      {"shuffle", batched(skip(make_shuffle(rows, 3)), 2)},
      {"filter", batched(skip(make_filter(rows, [](const Element&) { return true; })), 2)},
      {"padded_batch", skip(make_padded_batch(rows, 2, PaddedBatchOptions{}))},
      {"concatenate", batched(skip(make_concatenate(rows, rows)), 2)},
      {"drop_remainder", make_batch(rows, 100, BatchOptions{.drop_remainder = true})},
  };
  for (const auto& row : kTable) {
    for (int worker = 0; worker < 3; ++worker) {
      const std::string error = error_of([&] {
        const InputPlan plan = plan_input(row.dataset, row.policy, Assignment::TensorFlow, {3, 1, worker});
        DistributedCursor cursor(input_of(plan, 0));
        for (int step = 0; step < 100 && cursor.next(); ++step) continue;
      });
      EXPECT_NE(error.find("not enough files"), std::string::npos) << row.name << ", worker " << worker << error;
    }
  }
}

TEST(Steps, AreNotCountedWhereThereMayBeNone) {
  const StagePtr none = make_filter(make_range(0, 5), [](const Element&) { return false; });
  const StagePtr taken = make_take(make_repeat(none, -1), 31);
  for (const std::int64_t size : {3, 4}) {
    for (const WayToCut& way : kWaysToCut) {
      const InputPlan plan = plan_input(batched(taken, size), way.policy, way.assignment, {1, 2, 0});
      EXPECT_EQ(plan.steps(), Cardinality::unknown());
      DistributedCursor cursor(input_of(plan, 0));
      EXPECT_TRUE(read_all(cursor).empty());
    }
  }
  const StagePtr some = make_take(make_repeat(make_range(0, 5), -1), 31);
  const InputPlan plan = plan_input(batched(some, 3), AutoShardPolicy::Auto, Assignment::ByReplica, {2, 1, 0});
  EXPECT_EQ(plan.steps(), Cardinality(11));
  // Rows of batches are counted by their spec, even after one-to-one stages.
  const StagePtr unbatched = make_unbatch(batched(make_range(0, 26), 5, true));
  const StagePtr scanned = make_scan(
      unbatched, Element::of(at::zeros({}, at::kLong)), [](Element&, Element&) {}, unbatched->element_spec(), nullptr);
  const InputPlan of_scan = plan_input(batched(scanned, 3), AutoShardPolicy::Data, Assignment::ByReplica, {2, 1, 0});
  EXPECT_EQ(of_scan.steps(), Cardinality(9));
  DistributedCursor nine(input_of(of_scan, 0));
  EXPECT_EQ(read_all(nine).size(), 9u);
  // Empty input repeated very often; and a batch followed at an uncountable distance by the next.
  const StagePtr twelve = batched(make_range(0, 12), 4);
  const StagePtr often = make_repeat(make_take(twelve, 0), 1'000'000'000'000);
  EXPECT_EQ(plan_input(make_skip(often, 1), AutoShardPolicy::Off, Assignment::ByReplica, {1, 1, 0}).steps(),
            Cardinality(0));
  const StagePtr far = make_shard(twelve, std::numeric_limits<std::int64_t>::max(), 0);
  EXPECT_EQ(plan_input(far, AutoShardPolicy::Off, Assignment::ByReplica, {1, 1, 0}).steps(), Cardinality(1));
  const StagePtr promised = make_assert_cardinality(none, Cardinality(6));
  EXPECT_EQ(plan_input(batched(promised, 3), AutoShardPolicy::Data, Assignment::ByReplica, {2, 1, 0}).steps(),
            Cardinality(2));
}

TEST(TooFewFiles, AreAnErrorOnEveryWorkerAlsoIfNobodyKnewHowMany) {
  const auto folder = std::filesystem::temp_directory_path() / str("lockstep_few_", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string a = (folder / "a.txt").string(), b = (folder / "b.txt").string();
  for (const std::string& file : {a, b}) std::ofstream(file) << "1\n2\n3\n";
  const auto error_on = [&](int files, int workers, int worker) {
    const StagePtr some = make_filter(names({a, b, "no file"}), [&a, files](const Element& element) {
      return element.bytes(0) != "no file" && (files == 2 || (files == 1 && element.bytes(0) == a));
    });
    const StagePtr dataset = batched(make_text_line_stage(some, {}), 2);
    const InputPlan plan = plan_input(dataset, AutoShardPolicy::Auto, Assignment::TensorFlow, {workers, 1, worker});
    return error_of([&] { plan.make_source(kContext)->next(); });
  };
  for (int workers = 1; workers <= 5; ++workers) {
    for (int worker = 0; worker < workers; ++worker) {
      for (const int files : {0, 1, 2}) {
        const std::string error = error_on(files, workers, worker);
        const bool too_few = files > 0 && files < workers;
        EXPECT_EQ(error.find("not enough files") != std::string::npos, too_few) << error;
        EXPECT_EQ(error.find("AutoShardPolicy::Off") != std::string::npos, too_few) << error;
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(UnequalRows, AreAnErrorAtOnceWhereTheyAreKnown) {
  const StagePtr one = make_from_tensors(Element({at::arange(4), at::arange(3)}));
  const StagePtr zipped =
      make_zip(std::vector<StagePtr>{batched(make_range(0, 20), 4, true), batched(make_range(0, 20), 5, true)});
  for (const StagePtr& dataset : {one, zipped}) {
    for (const AutoShardPolicy policy : {AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off}) {
      for (int worker = 0; worker < 2; ++worker) {
        const std::string error = error_of([&] { plan_input(dataset, policy, Assignment::ByReplica, {2, 1, worker}); });
        EXPECT_NE(error.find("component 0 has 4 rows, component 1 has "), std::string::npos) << error;
      }
      EXPECT_NO_THROW(plan_input(dataset, policy, Assignment::ByReplica, {1, 1, 0})) << "nothing is cut";
    }
  }
}

// ---- files

TEST(CacheFiles, OfWorkersWithFilesOfTheirOwnAreTheirOwn) {
  const Folder folder("worker_caches");
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i) {
    files.push_back(folder / str("part", i));
    std::ofstream(files.back()) << i << "0\n" << i << "1\n";
  }
  const auto lines_of = [&](int worker, Assignment assignment) {
    const StagePtr cached = make_cache(make_text_line_stage(names(files), {}), folder / "shared.cache");
    DistributedInput input =
        distributed_by_plan(plan_input(batched(cached, 4), AutoShardPolicy::Auto, assignment, {2, 1, worker}));
    if (input.agreement) input.agreement = agree_alone;
    const auto shared = std::make_shared<const DistributedInput>(std::move(input));
    std::string lines;
    for (int pass = 0; pass < 2; ++pass) {
      DistributedCursor cursor(shared);
      while (const auto values = cursor.next()) {
        for (const std::string& line : std::get<Strings>(values->at(0).components.at(0))) lines += line + " ";
      }
    }
    return lines;
  };
  EXPECT_EQ(lines_of(0, Assignment::TensorFlow), "00 01 20 21 00 01 20 21 ");
  EXPECT_EQ(lines_of(1, Assignment::TensorFlow), "10 11 10 11 ");
  EXPECT_TRUE(std::filesystem::exists(folder / "shared.cache.0-of-2"));
  EXPECT_FALSE(std::filesystem::exists(folder / "shared.cache"));
  EXPECT_EQ(lines_of(1, Assignment::ByReplica), "10 11 21 10 11 21 ") << "its pieces of what all read";
  EXPECT_TRUE(std::filesystem::exists(folder / "shared.cache"));
}

// ---- user-defined pipelines

/// Without a spec, so the elements' shapes are known only from data.
StagePtr pairs(std::int64_t rows) {
  return batched(make_map(
                     make_range(0, rows),
                     [](Element& element) {
                       element = Element({element.tensor(0), at::zeros({2}, at::kDouble)});
                     },
                     ElementSpec::unknown(2), MapOptions{}),
                 2);
}

DistributedInputPtr for_each_replica(const std::vector<StagePtr>& pipelines, const ClusterShape& cluster,
                                     Assignment assignment = Assignment::ByReplica) {
  DistributedInput input = distributed_pipelines(pipelines, cluster, true, assignment);
  input.buffer_size = 0;
  return std::make_shared<const DistributedInput>(std::move(input));
}

TEST(PipelinesOfEachReplica, GetEmptyBatchesLikeThoseOfTheOthers) {
  DistributedCursor cursor(for_each_replica({pairs(0), pairs(5), pairs(2)}, {1, 3, 0}));
  for (int step = 0; step < 3; ++step) {
    const auto values = cursor.next();
    ASSERT_TRUE(values) << step;
    EXPECT_EQ(values->at(0).tensor(0).scalar_type(), at::kLong);
    EXPECT_EQ(values->at(0).tensor(1).scalar_type(), at::kDouble);
    EXPECT_EQ(values->at(0).tensor(1).sizes(), (std::vector<std::int64_t>{0, 2}));
    EXPECT_EQ(values->at(1).tensor(0).size(0), step < 2 ? 2 : 1);
  }
  EXPECT_FALSE(cursor.next());
}

std::function<StepTotals()> agree_with_others_that_have_data(const StepTotals& mine) {
  return [all = StepTotals{.values = mine.values + 1, .helpless = mine.helpless}] { return all; };
}

TEST(PipelinesOfEachReplica, KnowWhatEmptyBatchesLookLikeAfterAResume) {
  const auto input = [] {
    DistributedInput made = distributed_pipelines({pairs(5)}, {2, 1, 1}, false);
    made.agreement = agree_with_others_that_have_data;
    return std::make_shared<const DistributedInput>(std::move(made));
  };
  DistributedCursor cursor(input());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(cursor.next());
  DistributedCursor resumed = resume_cursor(input(), cursor.state());
  for (DistributedCursor* one : {&cursor, &resumed}) {
    const auto values = one->next();
    EXPECT_EQ(values->at(0).tensor(1).scalar_type(), at::kDouble);
    EXPECT_EQ(values->at(0).tensor(1).sizes(), (std::vector<std::int64_t>{0, 2}));
  }
}

TEST(PipelinesOfEachReplica, SayIfNothingIsKnownAboutTheirElements) {
  DistributedInput input = distributed_pipelines({pairs(0)}, {2, 1, 1}, false);
  input.agreement = agree_with_others_that_have_data;
  DistributedCursor cursor(std::make_shared<const DistributedInput>(std::move(input)));
  const std::string error = error_of([&] { cursor.next(); });
  EXPECT_NE(error.find("empty batch"), std::string::npos) << error;
  EXPECT_NE(error.find("`spec`"), std::string::npos) << error;
}

TEST(PipelinesOfEachReplica, HaveASpecThatIsTrueOfAll) {
  const StagePtr narrow = batched(make_slices(Element::of(at::zeros({8, 3}))), 4, true);
  const StagePtr wide = batched(make_slices(Element::of(at::zeros({8, 5}))), 4, true);
  constexpr ClusterShape kTwo{1, 2, 0};
  constexpr Assignment kTensorFlow = Assignment::TensorFlow;
  EXPECT_EQ(for_each_replica({narrow, narrow}, kTwo, kTensorFlow)->spec().element.components->at(0).shape,
            (PartialShape{4, 3}));
  EXPECT_EQ(for_each_replica({narrow, narrow}, kTwo)->spec().element.components->at(0).shape,
            (PartialShape{PartialShape::kUnknown, 3}))
      << "no row is lost if one of them ends first";
  EXPECT_EQ(for_each_replica({narrow, wide}, {1, 2, 0})->spec().element.components->at(0).shape,
            (PartialShape{PartialShape::kUnknown, PartialShape::kUnknown}))
      << "a replica may get an empty batch";
  const StagePtr endless = make_repeat(narrow, -1);
  EXPECT_FALSE(for_each_replica({narrow, narrow}, kTwo, kTensorFlow)->partial_steps);
  EXPECT_TRUE(for_each_replica({narrow, narrow}, kTwo)->partial_steps);
  EXPECT_TRUE(for_each_replica({narrow, wide}, {1, 2, 0})->partial_steps);
  EXPECT_TRUE(for_each_replica({endless, endless}, {1, 2, 0})->cardinality.is_infinite());
  EXPECT_FALSE(for_each_replica({endless, narrow}, {1, 2, 0})->cardinality.is_infinite());
}

std::int64_t count_steps(const DistributedInputPtr& input) {
  DistributedCursor cursor(input);
  std::int64_t steps = 0;
  while (cursor.next()) ++steps;
  return steps;
}

TEST(Steps, OfPipelinesAreCounted) {
  for (const bool drop : {false, true}) {
    for (const bool each : {false, true}) {
      for (std::int64_t rows = 0; rows < 12; ++rows) {
        const std::vector<StagePtr> pipelines = {batched(make_range(0, rows), 2, drop),
                                                 batched(make_range(0, 7), 2, drop)};
        DistributedInput input = distributed_pipelines(pipelines, {1, 2, 0}, each);
        const Cardinality steps = input.steps;
        EXPECT_EQ(steps, Cardinality(count_steps(std::make_shared<const DistributedInput>(std::move(input)))))
            << rows << drop << each;
      }
    }
  }
}

TEST(Signature, IsOfANumberOfReplicas) {
  const DistributedSpec two{2, make_range(0, 1)->element_spec()};
  EXPECT_NO_THROW(check_signature_width(two, 2));
  EXPECT_THROW(check_signature_width(two, 3), InvalidArgument);
  EXPECT_NO_THROW(check_signature_width({0, two.element}, 3)) << "written by hand, for one component";
}

}  // namespace
}  // namespace lockstep::data
