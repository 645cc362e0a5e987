#pragma once

#include <lockstep/base/error.h>
#include <torch/types.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

/// Images of handwritten digits and what they show. data/README.md tells where they come from.
struct Digits {
  torch::Tensor images;  ///< [n, 1, 8, 8], from 0 (paper) to 1 (ink)
  torch::Tensor labels;  ///< [n], 0 to 9

  std::int64_t count() const { return labels.size(0); }
  Digits pick(const torch::Tensor& rows) const { return {images.index_select(0, rows), labels.index_select(0, rows)}; }
  Digits part(int k, int parts) const { return {images.tensor_split(parts)[k], labels.tensor_split(parts)[k]}; }
};

namespace detail {

[[noreturn]] inline void throw_bad_digits(const std::string& path, std::int64_t line, const std::string& seen) {
  throw lockstep::DataLoss(lockstep::errors::kCsv, {.what = "the file of digits is damaged",
                                                    .where = path + ":" + std::to_string(line),
                                                    .seen = seen,
                                                    .help = "restore it from the repository"});
}

/// One line of the file: 64 pixels and the digit.
inline void parse_digit(const std::string& line, const std::string& path, std::int64_t number,
                        std::vector<std::uint8_t>& values) {
  constexpr int kPixels = 64;
  const char* at = line.data();
  const char* const end = at + line.size();
  for (int column = 0; column <= kPixels; ++column) {
    const int largest = column < kPixels ? 16 : 9;
    int value = -1;
    const auto [next, status] = std::from_chars(at, end, value);
    const bool is_last = column == kPixels;
    if (status != std::errc() || value < 0 || value > largest || is_last != (next == end) ||
        (!is_last && *next != ',')) {
      throw_bad_digits(path, number, "column " + std::to_string(column + 1) + " of '" + line.substr(0, 60) + "...'");
    }
    values.push_back(static_cast<std::uint8_t>(value));
    at = next + 1;
  }
}

}  // namespace detail

/// All 1,797 digits in the order of the file. NotFound if there is no such file, DataLoss if it is not as it should be.
inline Digits load_digits(const std::string& path = DIGITS_FILE) {
  constexpr std::int64_t kDigits = 1797;
  std::ifstream file(path);
  if (!file) {
    throw lockstep::NotFound(lockstep::errors::kFile, {.what = "cannot open the file of digits",
                                                       .where = path,
                                                       .help = "it is examples/data/digits.csv of the repository"});
  }
  std::vector<std::uint8_t> values;
  std::string line;
  std::int64_t lines = 0;
  while (std::getline(file, line)) detail::parse_digit(line, path, ++lines, values);
  if (lines != kDigits) detail::throw_bad_digits(path, lines, std::to_string(lines) + " lines, not 1797");
  const auto table = torch::tensor(values, torch::kUInt8).reshape({kDigits, 65});
  return {table.slice(1, 0, 64).to(torch::kFloat).div(16).reshape({kDigits, 1, 8, 8}),
          table.select(1, 64).to(torch::kLong)};
}

/// Every fifth digit, from the first on, is kept for the examination: (known, unseen).
inline std::pair<Digits, Digits> split_digits(const Digits& all) {
  const auto is_unseen = torch::arange(all.count()) % 5 == 0;
  return {all.pick(is_unseen.logical_not().nonzero().squeeze(1)), all.pick(is_unseen.nonzero().squeeze(1))};
}
