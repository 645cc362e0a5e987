// Rows that are written straight into the pieces of replicas.
#include "lockstep/data/distribute/own_rows.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/stage_meter.h"
#include "lockstep/data/stages/stages.h"
#include "tests/support/distributed_steps.h"

namespace lockstep::data {
namespace {

InputPlan plan_of(const StagePtr& dataset, const ClusterShape& cluster) {
  return plan_input(dataset, AutoShardPolicy::Auto, Assignment::ByReplica, cluster);
}

bool reads_own_rows(const StagePtr& dataset, const ClusterShape& cluster, const IterationContext& context = kContext) {
  const InputPlan plan = plan_of(dataset, cluster);
  return can_read_own_rows(*plan.pipeline(), plan.split, context);
}

/// Row i is a vector of `length(i)` numbers i.
template <class Length>
StagePtr vectors(std::int64_t rows, Length length) {
  return make_map(
      make_range(0, rows),
      [length](Element& element) {
        const std::int64_t i = element.tensor(0).item<std::int64_t>();
        element = Element::of(at::full({length(i)}, i));
      },
      ElementSpec::unknown(1), MapOptions{});
}

TEST(OwnRows, AreReadByOneWorkerWhereWholeBatchesAreNoFaster) {
  const StagePtr rows = make_range(0, 42), batches = make_batch(rows, 8);
  const auto parallel = [&](bool ordered) {
    return make_map(
        rows, [](Element&) {}, ElementSpec::unknown(1), MapOptions{.parallel_calls = 2, .ordered = ordered});
  };
  const StagePtr of_unknown_number = make_filter(rows, [](const Element&) { return true; });
  IterationContext measured = kContext;
  measured.meter = std::make_shared<StageMeter>();
  const ClusterShape one{1, 2, 0}, second_of_two{2, 2, 1};
  EXPECT_TRUE(reads_own_rows(batches, one));
  EXPECT_TRUE(reads_own_rows(make_batch(make_repeat(rows, -1), 8), one)) << "no batch of endless data is short";
  EXPECT_FALSE(reads_own_rows(batches, {1, 1, 0})) << "there is nothing to cut";
  EXPECT_FALSE(reads_own_rows(batches, one, measured)) << "the report has a line for batches";
  EXPECT_TRUE(reads_own_rows(batches, second_of_two, measured));
  for (const StagePtr& dataset :
       {make_prefetch(batches, 2), make_batch(parallel(true), 8), make_batch(of_unknown_number, 8)}) {
    EXPECT_FALSE(reads_own_rows(dataset, one)) << dataset->describe();
    EXPECT_TRUE(reads_own_rows(dataset, second_of_two)) << dataset->describe();
  }
  for (const StagePtr& dataset : {make_batch(parallel(false), 8), make_cache(batches)}) {
    EXPECT_FALSE(reads_own_rows(dataset, one)) << dataset->describe();
    EXPECT_FALSE(reads_own_rows(dataset, second_of_two)) << dataset->describe();
  }
}

TEST(OwnRows, OfOneBatchMustBeAlikeOnAllReplicas) {
  const StagePtr batches = make_batch(vectors(16, [](std::int64_t i) { return i == 4 || i > 7 ? 3 : 2; }), 8);
  DistributedCursor cursor(input_of(plan_of(batches, {1, 2, 0}), 0));
  const std::string error = error_of([&] { cursor.next(); });
  EXPECT_NE(error.find("rows of one batch must have the same shape and type"), std::string::npos) << error;
  EXPECT_NE(error.find("row 0 is int64[2]"), std::string::npos) << error;
  EXPECT_NE(error.find("row 4 is int64[3]"), std::string::npos) << error;
  EXPECT_NE(error.find("batch(8)"), std::string::npos) << error;
  const auto next = cursor.next();  // another batch, another form
  ASSERT_TRUE(next);
  EXPECT_EQ(next->at(1).tensor(0).sizes(), (at::IntArrayRef{4, 3}));
  EXPECT_EQ(next->at(1).tensor(0)[0][0].item<std::int64_t>(), 12);
  EXPECT_FALSE(cursor.next());
}

TEST(OwnRows, AreNotComputedBehindOneThatFails) {
  const auto calls = std::make_shared<std::vector<std::int64_t>>();
  const auto function = [calls](Element& element) {
    calls->push_back(element.tensor(0).item<std::int64_t>());
    if (calls->back() == 1) throw std::runtime_error("failed");
  };
  const StagePtr batches = make_batch(make_map(make_range(0, 12), function, ElementSpec::unknown(1), MapOptions{}), 8);
  DistributedCursor cursor(input_of(plan_of(batches, {1, 2, 0}), 0));
  EXPECT_THROW(cursor.next(), std::runtime_error);
  const auto next = cursor.next();
  ASSERT_TRUE(next);
  EXPECT_EQ(step_of(*next), (Step{{8, 9}, {10, 11}}));
  EXPECT_EQ(*calls, (std::vector<std::int64_t>{0, 1, 8, 9, 10, 11}));
}

/// Rows that cannot form an empty batch.
class NeverNone final : public RowSource {
 public:
  explicit NeverNone(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  void gather(std::span<const std::int64_t> indices, BufferPool&, Element& batch) const override {
    std::vector<Element> rows;
    for (const std::int64_t index : indices) rows.push_back(row(index));
    batch = stack(std::move(rows), "never none");
  }
  Element row(std::int64_t index) const override {
    return Element::of(at::full({2}, static_cast<double>(index), at::kFloat));
  }

 private:
  std::int64_t size_;
};

/// Rows of two numbers, then rows of three, stacked as a `torch::data` dataset stacks them. Some require gradients.
class TwoForms final : public RowSource {
 public:
  std::int64_t size() const override { return 4; }
  void gather(std::span<const std::int64_t> indices, BufferPool&, Element& batch) const override {
    std::vector<Element> rows;
    for (const std::int64_t i : indices) rows.push_back(row(i));
    batch = stack(std::move(rows), "two_forms");
  }
  Element row(std::int64_t i) const override {
    return Element::of(at::full({i < 2 ? 2 : 3}, static_cast<double>(i)).set_requires_grad(true));
  }
};

TEST(OwnRows, OfASourceOfUnknownFormMustBeAlikeOnAllReplicas) {
  const StagePtr rows = make_rows({.kind = "two_forms"}, std::make_shared<TwoForms>(), ElementSpec::unknown(1));
  DistributedCursor of_four(input_of(plan_of(make_batch(rows, 4), {1, 2, 0}), 0));
  const std::string error = error_of([&] { of_four.next(); });
  EXPECT_NE(error.find("rows of one batch must have the same shape and type"), std::string::npos) << error;
  for (const ClusterShape& cluster : {ClusterShape{1, 2, 0}, ClusterShape{2, 2, 1}}) {
    DistributedCursor of_two(input_of(plan_of(make_batch(rows, 2), cluster), 0));
    const auto first = of_two.next();
    ASSERT_TRUE(first);
    for (const Element& piece : *first) EXPECT_FALSE(piece.size() > 0 && piece.tensor(0).requires_grad());
  }
}

TEST(OwnRows, OfAWorkerWithoutRowsOfAShortBatchAreNone) {
  const StagePtr rows = make_rows({.kind = "never_none"}, std::make_shared<NeverNone>(9), ElementSpec::unknown(1));
  DistributedCursor second(input_of(plan_of(make_batch(rows, 4), {2, 1, 1}), 0));
  ASSERT_TRUE(second.next());
  ASSERT_TRUE(second.next());
  const auto last = second.next();  // one row, the other worker's
  ASSERT_TRUE(last);
  EXPECT_EQ(last->at(0).tensor(0).sizes(), (at::IntArrayRef{0, 2}));
}

TEST(OwnRows, OfAShortBatchLeaveEmptyPiecesOfTheSameForm) {
  const StagePtr source = make_rows({.kind = "never_none"}, std::make_shared<NeverNone>(7), ElementSpec::unknown(1));
  const StagePtr computed = vectors(7, [](std::int64_t) { return 2; });
  for (const StagePtr& rows : {source, computed}) {
    DistributedCursor cursor(input_of(plan_of(make_batch(rows, 4), {1, 4, 0}), 1));
    ASSERT_TRUE(cursor.next());
    const auto last = cursor.next();
    ASSERT_TRUE(last) << rows->describe();
    const at::Tensor &third = last->at(2).tensor(0), &none = last->at(3).tensor(0);
    EXPECT_EQ(third.sizes(), (at::IntArrayRef{1, 2}));
    EXPECT_EQ(none.sizes(), (at::IntArrayRef{0, 2}));
    EXPECT_EQ(none.scalar_type(), third.scalar_type());
    EXPECT_FALSE(cursor.next());
  }
}

}  // namespace
}  // namespace lockstep::data
