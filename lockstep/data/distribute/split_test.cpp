#include "lockstep/data/distribute/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/stages/balanced_cutter.h"

namespace lockstep::data {
namespace {

using Sizes = std::vector<std::int64_t>;

Sizes sizes_by(SplitRule rule, std::int64_t rows, int pieces) {
  Sizes sizes;
  for (int k = 0; k < pieces; ++k) sizes.push_back(cut(rule, rows, pieces, k).size());
  return sizes;
}

TEST(Split, OfUpTo12RowsOverFourReplicas) {
  const struct {
    std::int64_t rows;
    Sizes ceil, balanced;
  } kTable[] = {
      {0, {0, 0, 0, 0}, {0, 0, 0, 0}},  {1, {1, 0, 0, 0}, {1, 0, 0, 0}},  {2, {1, 1, 0, 0}, {1, 1, 0, 0}},
      {3, {1, 1, 1, 0}, {1, 1, 1, 0}},  {4, {1, 1, 1, 1}, {1, 1, 1, 1}},  {5, {2, 2, 1, 0}, {2, 1, 1, 1}},
      {6, {2, 2, 2, 0}, {2, 2, 1, 1}},  {7, {2, 2, 2, 1}, {2, 2, 2, 1}},  {8, {2, 2, 2, 2}, {2, 2, 2, 2}},
      {9, {3, 3, 3, 0}, {3, 2, 2, 2}},  {10, {3, 3, 3, 1}, {3, 3, 2, 2}}, {11, {3, 3, 3, 2}, {3, 3, 3, 2}},
      {12, {3, 3, 3, 3}, {3, 3, 3, 3}},
  };
  for (const auto& row : kTable) {
    EXPECT_EQ(sizes_by(SplitRule::CeilSplit, row.rows, 4), row.ceil) << row.rows;
    EXPECT_EQ(sizes_by(SplitRule::Even, row.rows, 4), row.balanced) << row.rows;
    EXPECT_EQ(balanced_sizes(row.rows, {.replicas_per_worker = 4}), row.balanced) << row.rows;
  }
}

TEST(Split, OfAHundredRowsOverSixteenReplicasLeavesNoneEmpty) {
  EXPECT_EQ(sizes_by(SplitRule::Even, 100, 16), (Sizes{7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6}));
  EXPECT_EQ(sizes_by(SplitRule::CeilSplit, 100, 16), (Sizes{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 0}));
}

TEST(Split, PiecesCoverABatchWithoutGapOrOverlap) {
  for (const SplitRule rule : {SplitRule::Even, SplitRule::CeilSplit}) {
    for (std::int64_t rows = 0; rows < 40; ++rows) {
      for (int pieces = 1; pieces < 12; ++pieces) {
        std::int64_t next = 0;
        for (int k = 0; k < pieces; ++k) {
          const RowRange piece = cut(rule, rows, pieces, k);
          EXPECT_EQ(piece.begin, next);
          EXPECT_LE(piece.begin, piece.end);
          next = piece.end;
        }
        EXPECT_EQ(next, rows) << pieces;
      }
    }
  }
}

TEST(Split, EvenPiecesDifferByOneRowAndTheLargerOnesComeFirst) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (int pieces = 1; pieces < 12; ++pieces) {
      const Sizes sizes = sizes_by(SplitRule::Even, rows, pieces);
      EXPECT_TRUE(std::ranges::is_sorted(sizes, std::greater())) << rows << " over " << pieces;
      EXPECT_LE(sizes.front() - sizes.back(), 1);
      EXPECT_EQ(sizes.back() == 0, rows < pieces) << "empty only if there are too few rows";
    }
  }
}

TEST(Split, BalancedSizesOfAWorkerBeginWithItsOwn) {
  EXPECT_EQ(balanced_sizes(10, {2, 2, 0}), (Sizes{3, 3, 2, 2}));
  EXPECT_EQ(balanced_sizes(10, {2, 2, 1}), (Sizes{2, 2, 3, 3}));
  EXPECT_EQ(balanced_sizes(7, {2, 2, 1}), (Sizes{2, 1, 2, 2}));
  EXPECT_EQ(balanced_sizes(4, {3, 1, 1}), (Sizes{1, 1, 2}));
  EXPECT_EQ(balanced_sizes(4, {3, 1, 2}), (Sizes{1, 2, 1}));
}

TEST(Split, BalancedSizesOfAStepSumToTheGlobalBatchOverAllWorkers) {
  for (int workers = 1; workers <= 5; ++workers) {
    for (int replicas = 1; replicas <= 4; ++replicas) {
      for (std::int64_t rows = 0; rows < 30; ++rows) {
        const int all = workers * replicas;
        for (int step = 0; step < workers; ++step) {
          std::int64_t sum = 0;
          for (int w = 0; w < workers; ++w) {
            const Sizes sizes = balanced_sizes(rows, {workers, replicas, w});
            ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), rows);
            for (int r = 0; r < replicas; ++r) sum += sizes[static_cast<std::size_t>((step * replicas + r) % all)];
          }
          EXPECT_EQ(sum, rows) << workers << 'x' << replicas << " step " << step;
        }
      }
    }
  }
}

TEST(Split, AStreamIsCutAcrossBatchesAndEndsWithAShortPiece) {
  const struct {
    std::int64_t rows;
    Sizes sizes;
    bool drop_remainder;
    Sizes pieces;
  } kTable[] = {
      {26, {3, 3, 2, 2}, false, {3, 3, 2, 2, 3, 3, 2, 2, 3, 3}},
      {26, {2, 2, 3, 3}, false, {2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 2}},
      {26, {2, 2, 3, 3}, true, {2, 2, 3, 3, 2, 2, 3, 3, 2, 2}},
      {6, {0, 3}, false, {0, 3, 0, 3, 0}},  // empty pieces due before the end are dealt
      {6, {0, 3}, true, {0, 3, 0, 3, 0}},
      {0, {0, 0, 1}, false, {0, 0}},
      {0, {1, 0, 0}, false, {}},
      {5, {2}, false, {2, 2, 1}},
  };
  for (const auto& row : kTable)
    EXPECT_EQ(pieces_of_stream(row.rows, row.sizes, row.drop_remainder), row.pieces) << row.rows;
}

TEST(Split, RuleDependsOnBatchSizePolicyAndReplicas) {
  EXPECT_EQ(choose_split(AutoShardPolicy::File, 10, 4), SplitRule::BalancedStream);
  EXPECT_EQ(choose_split(AutoShardPolicy::Data, 10, 4), SplitRule::CeilSplit);
  EXPECT_EQ(choose_split(AutoShardPolicy::File, kUnknownBatchSize, 4), SplitRule::CeilSplit);
  EXPECT_EQ(choose_split(AutoShardPolicy::Data, kUnknownBatchSize, 4), SplitRule::CeilSplit);
  EXPECT_EQ(choose_split(AutoShardPolicy::Data, 10, 1), SplitRule::None);
}

TEST(Assignment, ByReplicaGivesPieceKToReplicaKWhateverTheWorkers) {
  for (int workers = 1; workers <= 6; ++workers) {
    if (12 % workers) continue;
    std::vector<int> pieces;
    for (int w = 0; w < workers; ++w)
      for (const int k : pieces_of_worker({workers, 12 / workers, w}, Assignment::ByReplica)) pieces.push_back(k);
    EXPECT_EQ(pieces, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})) << workers;
  }
}

TEST(Assignment, TensorFlowDealsPiecesToWorkersInTurn) {
  EXPECT_EQ(pieces_of_worker({2, 2, 0}, Assignment::TensorFlow), (std::vector<int>{0, 2}));
  EXPECT_EQ(pieces_of_worker({2, 2, 1}, Assignment::TensorFlow), (std::vector<int>{1, 3}));
  EXPECT_EQ(pieces_of_worker({2, 2, 1}, Assignment::ByReplica), (std::vector<int>{2, 3}));
}

TEST(Assignment, EveryPieceHasOnePlace) {
  for (const Assignment assignment : {Assignment::ByReplica, Assignment::TensorFlow}) {
    for (int workers = 1; workers <= 5; ++workers) {
      for (int replicas = 1; replicas <= 4; ++replicas) {
        std::vector<int> owners(static_cast<std::size_t>(workers * replicas), 0);
        for (int w = 0; w < workers; ++w) {
          const std::vector<int> own = pieces_of_worker({workers, replicas, w}, assignment);
          ASSERT_EQ(own.size(), static_cast<std::size_t>(replicas));
          EXPECT_TRUE(std::ranges::is_sorted(own)) << "in the order of the replicas";
          for (const int k : own) ++owners.at(static_cast<std::size_t>(k));
        }
        EXPECT_EQ(std::ranges::count(owners, 1), workers * replicas);
      }
    }
  }
  // With one worker the places are the same.
  for (int n = 1; n <= 6; ++n) {
    EXPECT_EQ(pieces_of_worker({1, n, 0}, Assignment::ByReplica), pieces_of_worker({1, n, 0}, Assignment::TensorFlow));
  }
}

TEST(Split, RefusesWhatMakesNoSense) {
  EXPECT_THROW(balanced_sizes(4, {0, 1, 0}), InvalidArgument);
  EXPECT_THROW(balanced_sizes(4, {2, 1, 2}), InvalidArgument);
  EXPECT_THROW(balanced_sizes(4, {2, 0, 0}), InvalidArgument);
  EXPECT_THROW(balanced_sizes(-1, {2, 1, 0}), InvalidArgument);
  EXPECT_THROW(BalancedCutter({}), InvalidArgument);
  EXPECT_THROW(BalancedCutter({0, 0}), InvalidArgument);
  EXPECT_THROW(BalancedCutter({1, -1}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
