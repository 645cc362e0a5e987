#include "digits.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace {

TEST(DigitsFile, HoldsAllDigitsInBothParts) {
  const Digits all = load_digits();
  EXPECT_EQ(all.count(), 1797);
  EXPECT_EQ(all.images.sizes(), (std::vector<std::int64_t>{1797, 1, 8, 8}));
  EXPECT_EQ(all.images.max().item<float>(), 1.0f);
  EXPECT_EQ(all.images.min().item<float>(), 0.0f);
  EXPECT_EQ(all.labels.bincount().numel(), 10);
  const auto [known, unseen] = split_digits(all);
  EXPECT_EQ(known.count() + unseen.count(), 1797);
  EXPECT_EQ(unseen.count(), 360);
  EXPECT_GT(unseen.labels.bincount().min().item<int>(), 25);
}

/// A copy of the file with its last line replaced.
class ChangedFile {
 public:
  explicit ChangedFile(const std::function<std::string(std::string)>& change) {
    std::ifstream from(DIGITS_FILE);
    std::string all{std::istreambuf_iterator<char>(from), {}};
    const auto last = all.rfind('\n', all.size() - 2) + 1;
    std::ofstream(path_) << all.substr(0, last) << change(all.substr(last, all.size() - 1 - last));
  }
  ~ChangedFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "/lockstep_digits_" + std::to_string(::getpid()) + ".csv";
};

TEST(DigitsFile, DamageIsNamedByLine) {
  EXPECT_EQ(load_digits(ChangedFile([](std::string line) { return line + "\n"; }).path()).count(), 1797);
  const std::function<std::string(std::string)> damages[] = {
      [](const std::string&) { return ""; },
      [](const std::string& line) { return line + ",3"; },
      [](const std::string& line) { return line.substr(2); },
      [](const std::string& line) { return "17" + line.substr(1); },
      [](const std::string& line) { return "x" + line.substr(1); },
      [](const std::string& line) { return line + "\n" + line; },
      [](const std::string& line) { return line.substr(0, line.size() - 1); },
      [](const std::string& line) { return line.substr(0, line.size() - 1) + "12"; },
  };
  for (const auto& damage : damages) {
    const ChangedFile file(damage);
    try {
      load_digits(file.path());
      ADD_FAILURE() << "damage went unnoticed: '" << damage("0,0,0,0") << "'";
    } catch (const lockstep::Error& error) {
      EXPECT_EQ(error.number(), lockstep::errors::kCsv);
      for (const std::string& part : {file.path(), std::string("line 179")}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  }
}

TEST(DigitsFile, AMissingFileIsNotFound) { EXPECT_THROW(load_digits("/nowhere/digits.csv"), lockstep::NotFound); }

}  // namespace
