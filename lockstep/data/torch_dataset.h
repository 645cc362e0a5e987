#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {
namespace detail {

/// The rows of a `torch::data` dataset. Its `get` is not const, so rows are read one at a time.
template <class Source>
class TorchRows final : public RowSource {
 public:
  explicit TorchRows(Source source) : source_(std::move(source)) {
    const auto size = source_.size();
    if (!size)
      throw InvalidArgument(errors::kBadOption, {.what = "a torch dataset without a size cannot be read by index",
                                                 .where = "from_torch_dataset",
                                                 .help = "wrap it with from_generator"});
    size_ = static_cast<std::int64_t>(*size);
  }

  std::int64_t size() const override { return size_; }

  void gather(std::span<const std::int64_t> indices, BufferPool&, Element& batch) const override {
    std::vector<Element> rows;
    rows.reserve(indices.size());
    for (const std::int64_t index : indices) rows.push_back(shared_row(index));
    batch = stack(std::move(rows), "from_torch_dataset");
  }

  Element row(std::int64_t index) const override { return own_copy(shared_row(index)); }

 private:
  /// A row as the dataset gives it, which may be a view of what it keeps.
  Element shared_row(std::int64_t index) const {
    auto example = [&] {
      const std::lock_guard lock(mutex_);
      return source_.get(static_cast<std::size_t>(index));
    }();
    Element element;
    element.components.emplace_back(std::move(example.data));
    if constexpr (requires { at::Tensor(example.target); }) {
      element.components.emplace_back(std::move(example.target));
    } else if constexpr (requires { example.target; }) {
      using Target = std::remove_cvref_t<decltype(example.target)>;
      static_assert(std::is_arithmetic_v<Target>, "targets must be tensors or numbers");
      using Wide = std::conditional_t<std::is_floating_point_v<Target>, double, std::int64_t>;
      element.components.emplace_back(scalar_tensor(static_cast<Wide>(example.target), number_dtype<Target>()));
    }
    return element;
  }

  mutable std::mutex mutex_;
  mutable Source source_;
  std::int64_t size_ = 0;
};

template <class Source>
using TorchExample = decltype(std::declval<Source&>().get(std::size_t{0}));

template <class Source>
constexpr bool has_target() {
  return requires(TorchExample<Source> example) { example.target; };
}

}  // namespace detail

/// The examples of a `torch::data::datasets::Dataset`: pairs of data and target, a tensor or a number, or data
/// alone.
///
///     from_torch_dataset(torch::data::datasets::MNIST("./data")).shuffle(10'000).batch(64)
template <class Source>
auto from_torch_dataset(Source source) {
  using T = std::conditional_t<detail::has_target<Source>(), std::pair<at::Tensor, at::Tensor>, at::Tensor>;
  auto rows = std::make_shared<detail::TorchRows<Source>>(std::move(source));
  const ElementSpec spec = rows->size() > 0 ? ElementSpec::of(rows->row(0)).mapped([](const ComponentSpec& first) {
    return ComponentSpec{first.kind, first.dtype, {}};  // other rows may have other shapes
  })
                                            : spec_of_type<T>();
  std::string text = std::to_string(rows->size()) + " rows";
  return Dataset<T>(std::make_shared<RowsStage>("torch_dataset", std::move(text), std::move(rows), spec));
}

}  // namespace lockstep::data
