#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/logging.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/pipeline.h"
#include "tests/support/resume.h"

namespace lockstep::data {

using Rows = std::vector<std::vector<std::int64_t>>;

inline std::vector<std::int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous().view({-1});
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

inline Rows rows_of(DatasetIterator<at::Tensor> iterator) {
  Rows rows;
  while (auto element = iterator.next()) rows.push_back(integers(*element));
  return rows;
}
inline Rows rows_of(const Dataset<at::Tensor>& dataset) {
  return rows_of(dataset.iterator({.job_seed = 0, .epoch = 0}));
}

/// The elements of a dataset of scalars.
inline std::vector<std::int64_t> values_of(const Dataset<at::Tensor>& dataset) {
  std::vector<std::int64_t> values;
  for (const auto& row : rows_of(dataset)) values.insert(values.end(), row.begin(), row.end());
  return values;
}

/// 0, 1, ... count - 1.
inline std::vector<std::int64_t> counting(std::int64_t count) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}

/// Numbers from a stage that is not a source of rows, so that later stages take their general path.
inline Dataset<at::Tensor> opaque_range(std::int64_t count) {
  return range(count).map([](at::Tensor x) { return x; });
}

/// The exception of `f`, as text; "" if none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Suppresses log lines while it exists.
struct LogSilence {
  LogSilence() { set_log_severity(Severity::Silent); }
  ~LogSilence() { set_log_severity(Severity::Info); }
};

/// The elements of a stream by place; nothing for one that failed.
using Places = std::vector<std::optional<std::vector<std::int64_t>>>;

/// A function for `map` that throws at these rows of a range.
inline auto failing_at(std::vector<std::int64_t> bad) {
  return [bad](const at::Tensor& x) {
    for (const std::int64_t row : bad)
      if (x.item<std::int64_t>() == row) throw std::runtime_error("bad row");
    return x;
  };
}

/// Reads past errors; at most `limit` places.
inline Places places_of(DatasetIterator<at::Tensor> iterator, std::size_t limit = 10'000) {
  Places places;
  while (places.size() < limit) {
    try {
      const auto element = iterator.next();
      if (!element) break;
      places.emplace_back(integers(*element));
    } catch (const std::exception&) {
      places.emplace_back(std::nullopt);
    }
  }
  return places;
}

/// Saves at every place and continues from there in a new pipeline: both must give the same rest, including errors.
/// `build_again`: the continuing pipeline, if it is executed differently.
inline void expect_exact_positions(const std::function<Dataset<at::Tensor>()>& build, const std::string& name,
                                   std::size_t limit = 1000,
                                   const std::function<Dataset<at::Tensor>()>& build_again = nullptr) {
  const auto go_on = [&](const std::string& saved) {
    return resume(build_again ? build_again() : build(), IteratorState::parse(saved));
  };
  const auto start = [&] { return build().iterator({.job_seed = 11, .epoch = 3}); };
  const Places all = places_of(start(), limit);
  auto reader = start();
  for (std::size_t position = 0; position <= all.size(); ++position) {
    const IteratorState state = reader.state();
    const std::string saved = state.serialize();
    ASSERT_LT(saved.size(), state.pipeline.size() + 1000) << "a state holds positions, never rows";
    auto resumed = go_on(saved);
    ASSERT_EQ(resumed.consumed(), static_cast<std::int64_t>(position)) << name;
    const auto next = [](DatasetIterator<at::Tensor>& iterator) -> Places {
      try {
        const auto element = iterator.next();
        return element ? Places{integers(*element)} : Places{};
      } catch (const std::exception&) {
        return {std::nullopt};
      }
    };
    for (std::size_t i = position; i < all.size(); ++i) {
      ASSERT_EQ(next(resumed), Places{all[i]}) << name << ": resumed at " << position << ", differs at " << i;
      if (i == position + 2) {  // saved once more after resuming: positions do not drift
        auto twice = go_on(resumed.state().serialize());
        if (i + 1 < all.size()) {
          ASSERT_EQ(next(twice), Places{all[i + 1]}) << name << ": resumed twice at " << i;
        }
        if (position % 7 != 0) break;
      }
    }
    if (position == all.size() && all.size() < limit) {
      ASSERT_EQ(next(resumed), Places{}) << name << ": resumed at the end";
    }
    if (position < all.size()) {
      ASSERT_EQ(next(reader), Places{all[position]}) << name;
    }
  }
}

}  // namespace lockstep::data
