#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/data/files/files.h"
#include "lockstep/data/format/csv.h"
#include "lockstep/data/pipeline.h"
#include "tests/support/expect_error.h"
#include "tests/support/resume.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Texts = std::vector<std::string>;

TEST(CsvDataset, GivesTheColumnsAskedFor) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.csv", "id,height,name\n1,1.5,Ann\n2,,\"B,b\"\n");
  const CsvOptions options{.columns = {{.type = CsvType::String, .name = "name"},
                                       {.type = CsvType::Float32, .name = "height", .default_value = "-1"},
                                       {.type = CsvType::Int64, .name = "id"}}};
  using Person = std::tuple<std::string, float, at::Tensor>;
  const auto people = csv_dataset<Person>(path, options);
  const auto rows = people.to_vector();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(std::get<0>(rows[1]), "B,b");
  EXPECT_EQ(std::get<1>(rows[1]), -1.0F);
  EXPECT_EQ(std::get<2>(rows[1]).item<std::int64_t>(), 2);
  const auto batch = people.batch(2).to_vector().front();
  EXPECT_EQ(std::get<0>(batch), (Strings{"Ann", "B,b"}));
  EXPECT_TRUE(at::equal(std::get<1>(batch), at::tensor({1.5F, -1.0F})));
  EXPECT_EQ(to_string(people.element_spec()), "(bytes[], float32[], int64[])");

  const auto numbers = csv_dataset(path, {.columns = {{.type = CsvType::Int32, .name = "id"}}});
  EXPECT_EQ(numbers.to_vector()[1][0].scalar_type(), at::kInt);
  EXPECT_THROW(csv_dataset<Person>(path, {.columns = {{CsvType::Int32}}}), InvalidArgument);
  EXPECT_THROW(csv_dataset(path, {}), InvalidArgument);
}

TEST(CsvDataset, GoesOnBehindARecordWithAnotherNumberOfFields) {
  const TemporaryFolder folder;
  const auto errors = std::make_shared<ErrorCounter>();
  const auto rows = csv_dataset<std::tuple<std::int64_t, std::int64_t>>(
      folder.file("a", "a,b\n1,2\n3\n4,5\n6,7,8\n9,10\n"), {.columns = {{CsvType::Int64}, {CsvType::Int64}}});
  std::vector<std::int64_t> firsts;
  for (const auto& [first, second] : rows.ignore_errors({.counter = errors}).to_vector()) firsts.push_back(first);
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{1, 4, 9}));
  auto skipped = rows.skip(2).iterator();
  EXPECT_EQ(std::get<0>(*skipped.next()), 4) << "a record that fails keeps its place";
}

TEST(CsvDataset, NumbersThatDoNotFitTheTypeOfTheDatasetAreErrors) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a", "9999999999,1.5,2\n");
  const auto read = [&](auto number, CsvType type, int column) {
    using Number = decltype(number);
    return std::get<0>(
        *csv_dataset<std::tuple<Number>>(path, {.columns = {{.type = type, .index = column}}, .header = false})
             .iterator()
             .next());
  };
  EXPECT_EQ(read(std::int64_t{}, CsvType::Int64, 0), 9999999999);
  EXPECT_EQ(read(std::int64_t{}, CsvType::Float32, 2), 2);
  EXPECT_THROW(read(std::int32_t{}, CsvType::Int64, 0), InvalidArgument);
  expect_error([&] { read(std::int64_t{}, CsvType::Float32, 1); }, Code::InvalidArgument, errors::kStructure,
               {"not a whole number", "1.5, a float32[]"});
}

TEST(CsvDataset, GoesOnBehindAFieldThatDoesNotFit) {
  const TemporaryFolder folder;
  const auto numbers =
      csv_dataset<std::tuple<std::int64_t>>(folder.file("a", "n\n1\nx\n3\n"), {.columns = {{CsvType::Int64}}});
  auto it = numbers.iterator();
  EXPECT_EQ(std::get<0>(*it.next()), 1);
  expect_error([&] { it.next(); }, Code::InvalidArgument, errors::kCsv, {"record 1 (line 3)"});
  EXPECT_EQ(std::get<0>(*it.next()), 3);
  EXPECT_FALSE(it.next());
}

TEST(CsvDataset, GoesOnBehindAStrayQuote) {
  const TemporaryFolder folder;
  const auto errors = std::make_shared<ErrorCounter>();
  const Texts files{folder.file("a", "a,b\n1,2\nx\"y,3\n4,5\n\"6\"7,8\n9,10\n"), folder.file("b", "a,b\n11,12\n")};
  const auto rows = csv_dataset<std::tuple<std::string, std::int64_t>>(
      files, {.columns = {{CsvType::String, "a"}, {CsvType::Int64, "b"}}});
  const auto firsts = [](DatasetIterator<std::tuple<std::string, std::int64_t>> it) {
    Texts texts;
    while (auto row = it.next()) texts.push_back(std::get<0>(*row));
    return texts;
  };
  EXPECT_EQ(firsts(rows.ignore_errors({.counter = errors}).iterator()), (Texts{"1", "4", "9", "11"}));
  EXPECT_EQ(errors->count(), 2);
  // Each keeps its place, however it is skipped.
  EXPECT_EQ(firsts(rows.skip(2).ignore_errors().iterator()), (Texts{"4", "9", "11"}));
  EXPECT_EQ(firsts(rows.shard(2, 0).iterator()), (Texts{"1", "4", "9"}));
  auto it = rows.iterator();
  it.skip(4);
  EXPECT_EQ(firsts(resume(rows, it.state())), (Texts{"9", "11"}));
  auto reader = rows.iterator();
  reader.skip(1);
  expect_error([&] { reader.next(); }, Code::DataLoss, errors::kCsv, {"record 1 (line 3) at byte 9 of " + files[0]});
  EXPECT_EQ(std::get<0>(*resume(rows, reader.state()).next()), "4");
}

TEST(CsvDataset, RefusesColumnsThatItsTypeCannotHold) {
  using Numbers = std::tuple<at::Tensor, float>;
  const CsvOptions text_second{.columns = {{CsvType::Int64, "id"}, {CsvType::String, "name"}}};
  expect_error([&] { csv_dataset<Numbers>("people.csv", text_second); }, Code::InvalidArgument, errors::kCsv,
               {"column 1 'name' is read as string, but component 1 of the dataset's type is a tensor or a number",
                "csv_dataset of 1 file: people.csv"});
  expect_error(
      [&] {
        csv_dataset({"a.csv", "b.csv"}, text_second);
      },
      Code::InvalidArgument, errors::kCsv, {"column 1 'name'", "2 files: a.csv, ..."});
  using Words = std::pair<std::string, std::string>;
  expect_error([&] { csv_dataset<Words>("a.csv", text_second); }, Code::InvalidArgument, errors::kCsv,
               {"column 0 'id' is read as int64, but component 0 of the dataset's type is a byte string"});
  using Batches = std::pair<at::Tensor, Strings>;
  expect_error([&] { csv_dataset<Batches>("a.csv", text_second); }, Code::InvalidArgument, errors::kCsv,
               {"column 1 'name'", "a batch of byte strings"});
  EXPECT_NO_THROW((csv_dataset<std::pair<double, std::string>>("a.csv", text_second)));
}

TEST(CsvDataset, RefusesOptionsWhenItIsBuilt) {
  expect_error(
      [] {
        csv_dataset("nowhere.csv", {.columns = {{CsvType::Int64, "age", -1, "old"}}});
      },
      Code::InvalidArgument, errors::kCsv, {"default of column 0 'age' must be of type int64", "'old'"});
  expect_error([] { csv_dataset("nowhere.csv", {.columns = {{CsvType::Int64}}, .delimiter = '"'}); },
               Code::InvalidArgument, errors::kBadOption, {"neither a line end nor a quote"});
}

// A position counts records: options that change the records of a file make a different pipeline.
TEST(CsvDataset, DiffersByItsOptionsInAState) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a", "a,b\n1,2\n3,4\n");
  const CsvOptions base{.columns = {{CsvType::Int64, "a"}, {CsvType::Int64, "b"}}};
  std::vector<CsvOptions> others(9, base);
  others[0].columns[0].name = "b";
  others[1].columns[0].index = 1;
  others[2].columns[0].default_value = "7";
  others[3].columns[0].default_value = "8";
  others[4].header = false;
  others[5].delimiter = ';';
  others[6].quotes = false;
  others[7].na_value = "NA";
  others[8].max_record_bytes = 100;
  const auto dataset = csv_dataset(path, base);
  auto it = dataset.iterator();
  it.next();
  const IteratorState state = it.state();
  std::set<std::string> prints{fingerprint(*dataset.stage())};
  for (const CsvOptions& other : others) {
    const auto differs = csv_dataset(path, other);
    prints.insert(fingerprint(*differs.stage()));
    expect_error([&] { resume(differs, state); }, Code::InvalidArgument, errors::kPosition, {"another dataset"});
  }
  EXPECT_EQ(prints.size(), others.size() + 1);
  CsvOptions same = base;
  same.buffer_bytes = 64;
  EXPECT_EQ(resume(csv_dataset(path, same), state).next()->at(0).item<std::int64_t>(), 3);
  EXPECT_EQ(dataset.stage()->describe(), "csv(1 file: " + path + "; a int64, b int64)");
}

}  // namespace
}  // namespace lockstep::data
