// Files shared by every policy over clusters of every shape, against a reference that inserts the shards by hand and
// cuts plain lists: no row is lost or repeated, and every position can be resumed.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tests/support/random_pipelines.h"

namespace lockstep::data {
namespace {

enum class ShardPlace { None, Files, Rows };

struct Pipeline {
  const RowFiles* files = nullptr;
  bool shuffle_files = false;
  bool shuffle_rows = false;
  bool mapped = false;
  std::int64_t batch = 1;
  bool drop_remainder = false;

  /// With a shard of `shards` (kShardHint: a hint) at a place.
  StagePtr build(ShardPlace place = ShardPlace::None, int shards = 1, int shard = 0) const {
    StagePtr stage = make_slices(Element({Strings(files->names())}));
    const auto sharded = [&](ShardPlace here) {
      if (place == here) stage = make_shard(stage, shards, shard);
    };
    sharded(ShardPlace::Files);  // before the shuffle, where plans put it
    if (shuffle_files) stage = make_shuffle(stage, 10, ShuffleOptions{.seed = 5});
    stage = RowFiles::reader(stage);
    sharded(ShardPlace::Rows);
    if (shuffle_rows) stage = make_shuffle(stage, 6);
    if (mapped) {
      stage = make_map(
          stage, [](Element& element) { element = Element::of(element.tensor(0).add(1000)); }, ElementSpec::unknown(1),
          MapOptions{.spec = [](const ElementSpec& spec) { return spec; }});
    }
    return make_batch(stage, batch, BatchOptions{.drop_remainder = drop_remainder});
  }

  /// The batches of `build` with numbers in its shard, without the library.
  std::vector<Rows> batches_by_hand(ShardPlace place, std::size_t shards, std::size_t shard) const {
    Rows all;
    std::size_t count = 0;
    for (std::size_t f = 0; f < files->rows().size(); ++f) {
      if (place == ShardPlace::Files && f % shards != shard) continue;
      for (const std::int64_t row : files->rows()[f]) {
        if (place == ShardPlace::Rows && count++ % shards != shard) continue;
        all.push_back(mapped ? row + 1000 : row);
      }
    }
    std::vector<Rows> batches;
    const auto size = static_cast<std::size_t>(batch);
    for (std::size_t begin = 0; begin < all.size(); begin += size) {
      if (!drop_remainder || begin + size <= all.size()) batches.push_back(some_of(all, begin, begin + size));
    }
    return batches;
  }

  std::string text() const {
    std::string sizes;
    for (const Rows& rows : files->rows()) sizes += str(' ', rows.size());
    return str("files of", sizes, " rows, batches of ", batch, drop_remainder ? ", drop_remainder" : "",
               shuffle_files ? ", shuffled files" : "", shuffle_rows ? ", shuffled rows" : "");
  }
};

struct Case {
  Pipeline pipeline;
  AutoShardPolicy policy = AutoShardPolicy::Auto;
  Assignment assignment = Assignment::ByReplica;
  ShardPlace hint = ShardPlace::None;
  int workers = 1;
  int replicas = 1;  ///< per worker

  StagePtr dataset() const { return pipeline.build(hint, kShardHint, kShardHint); }
  InputPlan plan(int worker) const { return plan_input(dataset(), policy, assignment, {workers, replicas, worker}); }
  std::string text() const {
    return str(lockstep::to_string(policy), ' ', lockstep::to_string(assignment), ' ', workers, 'x', replicas, ", ",
               pipeline.text());
  }
};

/// The policies' rules in one place: the batches that a worker cuts, by which rule, and which pieces it keeps.
std::vector<Steps> expected_steps(const Case& c) {
  const bool one_stream = c.assignment == Assignment::ByReplica || c.workers == 1;
  const int all = c.workers * c.replicas;
  const bool by_rows = c.policy == AutoShardPolicy::Data;
  const auto tensorflows = by_rows ? SplitRule::CeilSplit : SplitRule::BalancedStream;
  const auto rule = all == 1 ? SplitRule::None : c.assignment == Assignment::ByReplica ? SplitRule::Even : tensorflows;
  const bool partial = !c.pipeline.drop_remainder || !one_stream;
  std::vector<Steps> steps;
  if (one_stream) {
    const Steps whole = dealt(pieces_by_rule(batches_of(c.pipeline.build()), rule, c.pipeline.batch, all),
                              static_cast<std::size_t>(all), partial);
    for (int w = 0; w < c.workers; ++w) steps.push_back(of_worker(whole, {c.workers, c.replicas, w}));
    return steps;
  }
  std::size_t longest = 0;
  for (int w = 0; w < c.workers; ++w) {
    ShardPlace place = c.hint;
    if (c.policy == AutoShardPolicy::Auto || c.policy == AutoShardPolicy::File) place = ShardPlace::Files;
    const auto batches = batches_of(c.pipeline.build(place, c.workers, w));
    if (!c.pipeline.shuffle_files && !c.pipeline.shuffle_rows) {
      EXPECT_EQ(batches,
                c.pipeline.batches_by_hand(place, static_cast<std::size_t>(c.workers), static_cast<std::size_t>(w)))
          << c.text();
    }
    std::vector<Rows> pieces = pieces_by_rule(batches, rule, c.pipeline.batch, all, w * c.replicas);
    if (by_rows) {
      std::vector<Rows> own;
      for (std::size_t k = static_cast<std::size_t>(w); k < pieces.size(); k += static_cast<std::size_t>(c.workers))
        own.push_back(pieces[k]);
      pieces = own;
    }
    steps.push_back(dealt(pieces, static_cast<std::size_t>(c.replicas), partial));
    longest = std::max(longest, steps.back().size());
  }
  // A worker without data continues with empty batches until all have ended.
  for (Steps& own : steps) own.resize(longest, Step(static_cast<std::size_t>(c.replicas)));
  return steps;
}

std::vector<std::int64_t> totals_of(const Case& c) {
  return totals_of_workers(c.workers, [&](int worker) { return c.plan(worker).make_source(kContext); });
}

/// Whether a shard has fewer files or rows than there are workers, which is an error.
bool has_too_few(const Case& c) {
  if (c.assignment == Assignment::ByReplica || c.workers == 1) return false;
  std::size_t elements = c.pipeline.files->names().size();
  if (c.policy == AutoShardPolicy::Data || c.policy == AutoShardPolicy::Off) return false;
  if (c.policy == AutoShardPolicy::Hint && c.hint == ShardPlace::None) return false;
  if (c.hint == ShardPlace::Rows) {
    elements = 0;
    for (const Rows& rows : c.pipeline.files->rows()) elements += rows.size();
    if (elements == 0) return false;
  }
  return elements < static_cast<std::size_t>(c.workers);
}

/// The plan's predictions must come true.
void check_plan(const InputPlan& plan, const Steps& steps, const Case& c) {
  if (const Cardinality promised = plan.steps(); promised.is_known()) {
    EXPECT_EQ(promised, Cardinality(std::ssize(steps))) << c.text();
  }
}

void check_case(const Case& c, std::mt19937& random) {
  const std::vector<Steps> expected = expected_steps(c);
  const std::vector<std::int64_t> totals = totals_of(c);
  for (int w = 0; w < c.workers; ++w) {
    const InputPlan plan = c.plan(w);
    const auto input = [&](std::size_t step, int buffer) {
      return input_of(plan, buffer, agreement_by(std::make_shared<KnownTotals>(totals, step)));
    };
    const Steps& mine = expected[static_cast<std::size_t>(w)];
    check_plan(plan, mine, c);
    DistributedCursor cursor(input(0, static_cast<int>(random() % 3)));
    ASSERT_EQ(read_all(cursor), mine) << c.text() << ", worker " << w;
    DistributedCursor again(input(0, 2));
    for (std::size_t taken = 0; taken <= mine.size(); ++taken) {
      DistributedCursor resumed = resume_cursor(input(taken, 0), IteratorState::parse(again.state().serialize()));
      ASSERT_EQ(read_all(resumed), Steps(mine.begin() + static_cast<std::ptrdiff_t>(taken), mine.end()))
          << c.text() << ", worker " << w << " after step " << taken;
      again.next();
    }
  }
}

/// Every row as often as expected: once, or once per worker if every worker reads everything.
void check_rows(const Case& c) {
  std::map<std::int64_t, int> counts;
  for (const Steps& steps : expected_steps(c)) {
    for (const Step& step : steps) {
      for (const Rows& rows : step) {
        for (const std::int64_t row : rows) ++counts[row];
      }
    }
  }
  const bool everybody =
      c.assignment == Assignment::TensorFlow &&
      (c.policy == AutoShardPolicy::Off || (c.policy == AutoShardPolicy::Hint && c.hint == ShardPlace::None));
  std::size_t rows = 0;
  for (const Rows& file : c.pipeline.files->rows()) rows += file.size();
  if (!c.pipeline.drop_remainder) {
    EXPECT_EQ(counts.size(), rows) << c.text();
  }
  for (const auto& [row, count] : counts) ASSERT_EQ(count, everybody ? c.workers : 1) << row << ": " << c.text();
}

const std::vector<std::vector<int>> kFileSizes = {
    {0}, {1}, {5}, {17}, {3, 4}, {0, 0, 7}, {1, 1, 1, 1, 1}, {2, 9, 4, 0, 3, 6, 1}, {6, 6, 6, 6}, {0, 0, 0, 0, 0}};
constexpr AutoShardPolicy kPolicies[] = {AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data,
                                         AutoShardPolicy::Off, AutoShardPolicy::Hint};

TEST(PolicyProperty, EveryPolicyOverEveryClusterIsAsTheReference) {
  std::mt19937 random(11);
  const auto below = [&](unsigned bound) { return static_cast<int>(random() % bound); };
  std::map<AutoShardPolicy, int> checked;
  int refused = 0;
  for (const auto& sizes : kFileSizes) {
    const RowFiles files(sizes);
    for (const AutoShardPolicy policy : kPolicies) {
      for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
        for (int workers = 1; workers <= 4; ++workers) {
          for (int replicas = 1; replicas <= 3; ++replicas) {
            const std::int64_t batch_sizes[] = {1, 2, 3, 4, 7, 10, 40};
            Case c{.policy = policy, .assignment = assignment, .workers = workers, .replicas = replicas};
            c.pipeline = {.files = &files,
                          .shuffle_files = below(4) == 0,
                          .shuffle_rows = below(4) == 0,
                          .mapped = below(3) == 0,
                          .batch = batch_sizes[below(7)],
                          .drop_remainder = below(4) == 0};
            if (policy == AutoShardPolicy::Hint) c.hint = static_cast<ShardPlace>(below(3));
            if (has_too_few(c)) {
              ++refused;
              // Every worker fails in the same step: before the first if the number is known beforehand, otherwise
              // during it.
              for (int w = 0; w < workers; ++w) {
                if (c.hint != ShardPlace::Rows) {
                  EXPECT_THROW(c.plan(w), InvalidArgument) << c.text();
                  continue;
                }
                const auto source = c.plan(w).make_source(kContext);
                EXPECT_THROW(source->next(), InvalidArgument) << c.text() << ", worker " << w;
              }
              continue;
            }
            ++checked[policy];
            check_case(c, random);
            check_rows(c);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  for (const AutoShardPolicy policy : kPolicies) EXPECT_GT(checked[policy], 100) << lockstep::to_string(policy);
  EXPECT_GT(refused, 20);
}

TEST(PolicyProperty, ByReplicaGivesTheSameRowsForEveryClusterOfAsManyReplicas) {
  std::mt19937 random(12);
  for (const auto& sizes : kFileSizes) {
    const RowFiles files(sizes);
    for (const AutoShardPolicy policy : kPolicies) {
      for (const std::int64_t batch : {1, 3, 8}) {
        Case c{.policy = policy, .assignment = Assignment::ByReplica};
        c.pipeline = {.files = &files,
                      .shuffle_files = random() % 2 == 0,
                      .shuffle_rows = random() % 2 == 0,
                      .batch = batch,
                      .drop_remainder = random() % 4 == 0};
        if (policy == AutoShardPolicy::Hint) c.hint = static_cast<ShardPlace>(random() % 3);
        c.replicas = 6;
        const auto steps_from = [&](const ClusterShape& cluster, std::optional<IteratorState> state) {
          c.workers = cluster.workers;
          c.replicas = cluster.replicas_per_worker;
          const auto input = input_of(c.plan(cluster.worker), 0);
          DistributedCursor cursor = state ? resume_cursor(input, *state) : DistributedCursor(input);
          return read_all(cursor);
        };
        const Steps whole = steps_from({1, 6, 0}, std::nullopt);
        for (const int workers : {1, 2, 3, 6}) {
          // Saved by this cluster after each step, and resumed by every other one.
          c.workers = workers;
          c.replicas = 6 / workers;
          DistributedCursor before(input_of(c.plan(workers - 1), 1));
          for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
            const IteratorState state = before.state();
            for (const int others : {1, 2, 3, 6}) {
              const ClusterShape cluster{others, 6 / others,
                                         static_cast<int>(random() % static_cast<unsigned>(others))};
              ASSERT_EQ(steps_from(cluster, state), of_worker(whole, cluster, taken))
                  << c.text() << ", after step " << taken << " of " << workers << " workers";
            }
            before.next();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
