#pragma once

#include <lockstep/base/error.h>
#include <lockstep/data/format/csv.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Images of handwritten digits with their labels. data/README.md documents their source.
struct Digits {
  torch::Tensor images;  ///< [n, 1, 8, 8], from 0 (paper) to 1 (ink)
  torch::Tensor labels;  ///< [n], 0 to 9

  std::int64_t count() const { return labels.size(0); }
  Digits pick(const torch::Tensor& rows) const { return {images.index_select(0, rows), labels.index_select(0, rows)}; }
  Digits to(const torch::Device& device) const { return {images.to(device), labels.to(device)}; }
  Digits part(int k, int parts) const { return {images.tensor_split(parts)[k], labels.tensor_split(parts)[k]}; }
};

/// All 1,797 digits in the order of the file. Throws NotFound if the file does not exist, and DataLoss with the line if
/// it is damaged.
inline Digits load_digits(const std::string& path = DIGITS_FILE) {
  namespace data = lockstep::data;
  constexpr std::int64_t kDigits = 1797, kPixels = 64;
  const auto damaged = [&](const std::string& seen) {
    throw lockstep::DataLoss(lockstep::errors::kCsv, {.what = "the file of digits is damaged",
                                                      .where = path,
                                                      .seen = seen,
                                                      .help = "restore it from the repository"});
  };
  const std::vector<data::CsvColumn> columns(kPixels + 1, {data::CsvType::Int32});  // the pixels and the digit
  data::CsvReader file(path, {.columns = columns, .header = false});
  std::vector<std::int32_t> values;
  std::int64_t lines = 0;
  for (; file.next(); ++lines) {
    for (const data::CsvValue& value : file.values()) {
      const auto number = std::get<std::int32_t>(value);
      const bool is_pixel = static_cast<std::int64_t>(values.size()) - lines * (kPixels + 1) < kPixels;
      if (number < 0 || number > (is_pixel ? 16 : 9)) {
        damaged((is_pixel ? "a pixel of " : "a digit of ") + std::to_string(number) + " in line " +
                std::to_string(lines + 1));
      }
      values.push_back(number);
    }
  }
  if (lines != kDigits) damaged("it ends after line " + std::to_string(lines) + ", expected 1797 lines");
  const auto table = torch::tensor(values).reshape({kDigits, kPixels + 1});
  return {table.slice(1, 0, kPixels).to(torch::kFloat).div(16).reshape({kDigits, 1, 8, 8}),
          table.select(1, kPixels).to(torch::kLong)};
}

/// Holds out every fifth digit, starting with the first, for evaluation: (known, unseen).
inline std::pair<Digits, Digits> split_digits(const Digits& all) {
  const auto is_unseen = torch::arange(all.count()) % 5 == 0;
  return {all.pick(is_unseen.logical_not().nonzero().squeeze(1)), all.pick(is_unseen.nonzero().squeeze(1))};
}
