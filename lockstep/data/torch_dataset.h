#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {
namespace detail {

/// Whether rows can be read one by one. Datasets with transforms (`dataset.map(...)`) only return batches.
template <class Source>
concept GivesRows = requires(Source& source) {
  source.get(std::size_t{0});
};
template <class Source>
concept GivesBatches = requires(Source& source, const std::vector<std::size_t>& rows) {
  source.get_batch(rows);
};

/// Whether batches are lists of rows that were not stacked.
template <class Source>
concept GivesLists = requires(Source& source, const std::vector<std::size_t>& rows) {
  source.get_batch(rows).at(0);
};

/// What a source returns for row `index`: a row, a list of one, or a batch of one.
template <class Source>
auto torch_example(Source& source, std::size_t index) {
  if constexpr (GivesRows<Source>)
    return source.get(index);
  else if constexpr (GivesLists<Source>)
    return source.get_batch(std::vector<std::size_t>{index}).at(0);
  else
    return source.get_batch(std::vector<std::size_t>{index});
}
template <class Source>
using TorchExample = decltype(torch_example(std::declval<Source&>(), 0));

/// The rows of a `torch::data` dataset. Its functions are not const, so rows are read by one thread at a time.
template <class Source>
class TorchRows final : public RowSource {
 public:
  explicit TorchRows(Source source) : source_(std::move(source)) {
    const auto size = source_.size();
    if (!size)
      throw InvalidArgument(errors::kBadOption, {.what = "a torch dataset must have a size to be read by index",
                                                 .where = "from_torch_dataset",
                                                 .help = "wrap it with from_generator"});
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }

  void gather(std::span<const std::int64_t> indices, BufferPool&, Element& batch) const override {
    if constexpr (kIsStacked) {
      if (!indices.empty()) {
        batch = own_copy(stacked(indices));
        return;
      }
    }
    std::vector<Element> rows;
    rows.reserve(indices.size());
    for (const std::int64_t index : indices) rows.push_back(shared_row(index));
    batch = stack(std::move(rows), "from_torch_dataset");
  }

  Element row(std::int64_t index) const override { return own_copy(shared_row(index)); }

 private:
  using Example = TorchExample<Source>;
  static constexpr bool kIsStacked = !GivesRows<Source> && !GivesLists<Source>;

  static Element element_of(Example example) {
    static_assert(
        requires { at::Tensor(example.data); }, "rows must be torch::data::Example, with a tensor as data");
    if constexpr (requires { example.target; }) {
      using Target = std::remove_cvref_t<decltype(example.target)>;
      static_assert(std::is_same_v<Target, at::Tensor> || std::is_arithmetic_v<Target>,
                    "targets must be tensors or numbers");
    }
    Element element;
    encode<Example>(std::move(example), element);
    return element;
  }

  /// A batch as the dataset stacks it; it must have one row per index.
  Element stacked(std::span<const std::int64_t> indices) const {
    const std::vector<std::size_t> rows(indices.begin(), indices.end());
    Element batch = [&] {
      const std::lock_guard lock(mutex_);
      return element_of(source_.get_batch(rows));
    }();
    if (row_count(batch, "from_torch_dataset") != std::ssize(rows))
      throw InvalidArgument(errors::kShape, {.what = "the dataset must give batches of as many rows as asked for",
                                             .where = "from_torch_dataset",
                                             .seen = describe(batch),
                                             .help = "use only transforms that keep the number of rows"});
    return batch;
  }

  /// A row as the dataset returns it, which may be a view of its data.
  Element shared_row(std::int64_t index) const {
    if constexpr (kIsStacked) {
      return data::row(stacked({&index, 1}), 0);
    } else {
      const std::lock_guard lock(mutex_);
      return element_of(torch_example(source_, static_cast<std::size_t>(index)));
    }
  }

  mutable std::mutex mutex_;
  mutable Source source_;
  std::int64_t size_ = 0;
};

}  // namespace detail

/// The examples of a `torch::data::datasets::Dataset`: pairs of data and target, each a tensor or a number, or only
/// data. Torch's transforms are part of the dataset.
///
///     from_torch_dataset(torch::data::datasets::MNIST("./data")).shuffle(10'000).batch(64)
///     from_torch_dataset(torch::data::datasets::MNIST("./data").map(torch::data::transforms::Normalize<>(0.13, 0.31)))
template <class Source>
auto from_torch_dataset(Source source) {
  static_assert(detail::GivesRows<Source> || detail::GivesBatches<Source>,
                "only datasets whose rows can be asked for by number can be read: wrap others with from_generator");
  constexpr bool has_target = requires(detail::TorchExample<Source> example) { example.target; };
  using T = std::conditional_t<has_target, std::pair<at::Tensor, at::Tensor>, at::Tensor>;
  auto rows = std::make_shared<detail::TorchRows<Source>>(std::move(source));
  const ElementSpec spec = rows->size() > 0 ? ElementSpec::of(rows->row(0)).mapped([](const ComponentSpec& first) {
    return ComponentSpec{first.kind, first.dtype, {}};  // other rows may have other shapes
  })
                                            : spec_of_type<T>();
  return Dataset<T>(
      make_rows({.kind = "torch_dataset", .detail = counted(rows->size(), "row"), .runs_functions = true}, rows, spec));
}

}  // namespace lockstep::data
