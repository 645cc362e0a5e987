// Tensors with lazy conjugation or negation, and tensors without memory, in code that copies bytes.
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/files/npy_tensor.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

at::Tensor number(std::int64_t row) {
  return at::complex(at::full({2}, 1.0), at::full({2}, static_cast<double>(row + 1)));
}

struct View {
  const char* name;
  at::Tensor (*of)(std::int64_t row);     ///< a view whose values differ from its bytes
  at::Tensor (*plain)(std::int64_t row);  ///< the same with the values in its bytes
};

const View kViews[] = {
    {"conjugate", [](std::int64_t row) { return number(row).conj(); },
     [](std::int64_t row) { return number(row).conj().resolve_conj(); }},
    {"negative", [](std::int64_t row) { return at::imag(number(row).conj()); },
     [](std::int64_t row) { return at::imag(number(row)).mul(-1).contiguous(); }},
};

Dataset<at::Tensor> rows_of(const View& view) {
  return range(3).map([of = view.of](const at::Tensor& row) { return of(row.item<std::int64_t>()); });
}

at::Tensor all_rows(const View& view) { return at::stack({view.plain(0), view.plain(1), view.plain(2)}); }

at::Tensor stacked(const Dataset<at::Tensor>& rows) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& row : rows.to_vector()) tensors.push_back(row.resolve_conj().resolve_neg());
  return at::stack(tensors);
}

TEST(LazyViews, AreWrittenOutWhereRowsBecomeBatches) {
  for (const View& view : kViews) {
    ASSERT_TRUE(view.of(0).is_conj() || view.of(0).is_neg());
    const at::Tensor expected = all_rows(view);
    const auto rows = rows_of(view);
    const auto ahead = range(3).map([of = view.of](const at::Tensor& row) { return of(row.item<std::int64_t>()); },
                                    {.parallel_calls = 2});
    const struct {
      const char* name;
      Dataset<at::Tensor> batches;
    } kTable[] = {{"batch", rows.batch(3)},
                  {"a batch of any size", rows.batch(std::int64_t{1} << 30)},
                  {"parallel", ahead.batch(3)},
                  {"parallel, of any size", ahead.batch(std::int64_t{1} << 30)},
                  {"padded_batch", rows.padded_batch(3)},
                  {"cache", rows.cache().batch(3)},
                  {"unbatch", rows.unbatch().batch(6).map([](const at::Tensor& x) {
                     return x.view({3, 2});
                   })}};
    for (const auto& row : kTable) {
      const auto batches = row.batches.to_vector();
      ASSERT_EQ(batches.size(), 1u) << row.name;
      EXPECT_TRUE(at::equal(batches[0].resolve_conj().resolve_neg(), expected)) << view.name << ", " << row.name;
    }
  }
}

TEST(LazyViews, AreWhatIsComparedAndWrittenToFiles) {
  const auto folder = std::filesystem::temp_directory_path() / str("lockstep_lazy_views_", ::getpid());
  std::filesystem::create_directories(folder);
  for (const View& view : kViews) {
    const auto cached = rows_of(view).cache((folder / view.name).string());
    for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(at::equal(stacked(cached), all_rows(view))) << view.name << pass;

    const auto same_bytes = range(2).map([of = view.of](const at::Tensor& row) {
      return row.item<std::int64_t>() == 0 ? of(0) : of(0).is_conj() ? of(0).conj() : of(0).neg();
    });
    EXPECT_EQ(same_bytes.unique().to_vector().size(), 2u) << view.name << ": of opposite values";

    const std::string file = (folder / str(view.name, ".npy")).string();
    write_npy(file, view.of(1));
    EXPECT_TRUE(at::equal(npy_tensor(file), view.plain(1))) << view.name;
  }
  std::filesystem::remove_all(folder);
}

TEST(TensorsWithoutContents, AreRefusedWhereTheirContentsAreNeeded) {
  const auto nothing = range(3).map([](const at::Tensor&) { return at::Tensor(); });
  const auto refused = [](const Dataset<at::Tensor>& dataset) {
    try {
      dataset.to_vector();
    } catch (const InvalidArgument& error) {
      return !error.text().help.empty();
    }
    return false;
  };
  EXPECT_TRUE(refused(nothing.unique()));
  const auto file = std::filesystem::temp_directory_path() / str("lockstep_undefined_", ::getpid());
  EXPECT_TRUE(refused(nothing.cache(file.string())));
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace lockstep::data
