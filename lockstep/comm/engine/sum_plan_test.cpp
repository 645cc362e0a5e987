#include "lockstep/comm/engine/sum_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/reduction_tree.h"

namespace lockstep::engine {
namespace {

// The tree as text: the bits of a sum are right exactly if its brackets are.
std::string tree(int lo, int hi) {
  if (hi - lo == 1) return std::to_string(lo);
  const int middle = tree_middle(lo, hi);
  return "(" + tree(lo, middle) + "+" + tree(middle, hi) + ")";
}

std::string ordered(const std::vector<std::string>& inputs, int lo, int hi) {
  if (hi - lo == 1) return inputs[static_cast<std::size_t>(lo)];
  const int middle = tree_middle(lo, hi);
  return "(" + ordered(inputs, lo, middle) + "+" + ordered(inputs, middle, hi) + ")";
}

std::string executed(const SumPlan& plan) {
  std::vector<std::string> values;
  for (const SumPiece& piece : plan.pieces) values.push_back(tree(piece.ids.lo, piece.ids.hi));
  for (const auto& step : plan.steps) {
    std::vector<std::string> inputs;
    for (const int value : step) inputs.push_back(values.at(static_cast<std::size_t>(value)));
    values.push_back(ordered(inputs, 0, static_cast<int>(inputs.size())));
  }
  return values.back();
}

std::string to_string(const SumPlan& plan) {
  const int workers = static_cast<int>(plan.first_piece.size()) - 1;
  std::string text = counted(workers, "worker") + ": ";
  for (int worker = 0; worker < workers; ++worker) {
    text += str("w", worker);
    for (int k = plan.first_piece[worker]; k < plan.first_piece[worker + 1]; ++k)
      text += str(" [", plan.pieces[k].ids.lo, ",", plan.pieces[k].ids.hi, ")");
    text += "; ";
  }
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    text += str(i == 0 ? "v" : "; v", plan.pieces.size() + i, " = ");
    for (std::size_t k = 0; k < plan.steps[i].size(); ++k) text += str(k == 0 ? "" : "+", plan.steps[i][k]);
  }
  return text;
}

TEST(SumPlan, AddsInTheOneOrderForEveryNumberOfWorkersAndReplicas) {
  for (int workers = 1; workers <= 9; ++workers) {
    for (int replicas = 1; replicas <= 9; ++replicas) {
      SCOPED_TRACE(str(workers, " x ", replicas));
      EXPECT_EQ(executed(plan_sum(workers, replicas)), tree(0, workers * replicas));
    }
  }
}

TEST(SumPlan, PiecesCoverEachWorkersIdsInOrder) {
  for (int workers = 1; workers <= 8; ++workers) {
    for (int replicas = 1; replicas <= 16; ++replicas) {
      const SumPlan plan = plan_sum(workers, replicas);
      int next = 0;
      for (int worker = 0; worker < workers; ++worker) {
        for (int k = plan.first_piece[worker]; k < plan.first_piece[worker + 1]; ++k) {
          EXPECT_EQ(plan.pieces[k].worker, worker);
          EXPECT_EQ(plan.pieces[k].ids.lo, next);
          next = plan.pieces[k].ids.hi;
        }
        EXPECT_EQ(next, (worker + 1) * replicas);
        const int pieces = plan.first_piece[worker + 1] - plan.first_piece[worker];
        EXPECT_LE(pieces, plan.most_pieces);
        const int bits = std::bit_width(static_cast<unsigned>(replicas)) - 1;
        EXPECT_LE(pieces, std::max(1, 2 * bits)) << workers << " x " << replicas;
      }
    }
  }
}

TEST(SumPlan, APowerOfTwoOfReplicasNeedsOnePieceAndOneStep) {
  for (const int replicas : {1, 2, 4, 8}) {
    for (int workers = 1; workers <= 8; ++workers) {
      const SumPlan plan = plan_sum(workers, replicas);
      EXPECT_EQ(plan.most_pieces, 1);
      EXPECT_EQ(plan.steps.size(), 1U) << to_string(plan);
    }
  }
}

TEST(SumPlan, PrintsWhoAddsWhat) {
  EXPECT_EQ(to_string(plan_sum(2, 3)),
            "2 workers: w0 [0,2) [2,3); w1 [3,4) "
            "[4,6); v4 = 1+2; v5 = 0+4; v6 = 5+3");
}

TEST(Shards, CoverAllElementsInOrderAndEvenly) {
  for (const std::size_t count : {0, 1, 63, 64, 65, 1001, 65536}) {
    for (int workers = 1; workers <= 9; ++workers) {
      const auto shards = shards_of(count, {}, workers);
      ASSERT_EQ(shards.size(), static_cast<std::size_t>(workers));
      std::size_t next = 0;
      for (const Shard& shard : shards) {
        EXPECT_EQ(shard.begin, next);
        EXPECT_TRUE(shard.begin % 64 == 0 || shard.size() == 0);
        EXPECT_LE(shard.size(), count / static_cast<std::size_t>(workers) + 128);
        next = shard.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(Shards, OfGivenSizes) {
  const std::vector<std::uint64_t> counts{3, 0, 2};
  EXPECT_EQ(shards_of(5, counts, 3), (std::vector<Shard>{{0, 3}, {3, 3}, {3, 5}}));
}

}  // namespace
}  // namespace lockstep::engine
