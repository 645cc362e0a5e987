#include "lockstep/data/files/files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/format/example.h"
#include "lockstep/data/format/npy.h"
#include "lockstep/data/format/test_support.h"

namespace lockstep::data {
namespace {

using Texts = std::vector<std::string>;

std::vector<std::int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

/// Three files with 5, 0 and 7 records.
class Records : public ::testing::Test {
 protected:
  Records() {
    int number = 0;
    for (const int count : {5, 0, 7}) {
      files_.push_back(folder_.file("part-" + std::to_string(files_.size())));
      TFRecordWriter writer(files_.back());
      for (int i = 0; i < count; ++i) {
        texts_.push_back("record " + std::to_string(number++));
        writer.write(texts_.back());
      }
      writer.close();
    }
  }

  // Reads to the end, leaving out what fails, and counts that.
  static std::pair<Texts, int> read_through(const Dataset<std::string>& dataset) {
    Texts texts;
    int failed = 0;
    for (auto it = dataset.iterate();;) {
      try {
        auto text = it.next();
        if (!text) return {texts, failed};
        texts.push_back(*text);
      } catch (const Error&) {
        if (++failed > 100) throw;
      }
    }
  }

  TempDir folder_;
  Texts files_;
  Texts texts_;
};

TEST_F(Records, ComeFromAllFilesInOrder) {
  EXPECT_EQ(TFRecordDataset(files_).to_vector(), texts_);
  EXPECT_EQ(TFRecordDataset(from_tensor_slices(files_)).to_vector(), texts_);
  EXPECT_EQ(TFRecordDataset(matching_files({folder_.file("part-*")})).to_vector(), texts_);
  EXPECT_EQ(TFRecordDataset(files_[0]).to_vector(), Texts(texts_.begin(), texts_.begin() + 5));
  EXPECT_EQ(TFRecordDataset(files_).element_spec(), (ElementSpec{{{ComponentSpec::bytes()}}}));
  EXPECT_TRUE(TFRecordDataset(files_).cardinality().is_unknown());
  EXPECT_EQ(TFRecordDataset(files_, {.compression = Compression::Gzip}).stage()->describe(), "tfrecord(GZIP)");
  const auto batches = TFRecordDataset(files_).batch(8).to_vector();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[1], Strings(Texts(texts_.begin() + 8, texts_.end())));
}

TEST_F(Records, GoOnFromEverySavedPosition) {
  const auto dataset = TFRecordDataset(files_);
  for (std::size_t at = 0; at <= texts_.size(); ++at) {
    for (const bool by_skip : {false, true}) {
      auto it = dataset.iterate();
      if (by_skip) {
        EXPECT_EQ(it.skip(static_cast<std::int64_t>(at)), static_cast<std::int64_t>(at));
      } else {
        for (std::size_t i = 0; i < at; ++i) ASSERT_TRUE(it.next());
      }
      auto resumed = dataset.resume(IteratorState::parse(it.save().serialize()));
      for (std::size_t i = at; i < texts_.size(); ++i) {
        const auto text = resumed.next();
        ASSERT_TRUE(text);
        EXPECT_EQ(*text, texts_[i]) << "from " << at;
        EXPECT_EQ(resumed.save(), [&] {
          auto plain = dataset.iterate({.job_seed = default_job_seed(), .epoch = it.save().epoch});
          plain.skip(static_cast<std::int64_t>(i + 1));
          auto state = plain.save();
          state.position = resumed.save().position;  // how a place is found may differ, the place may not
          return state;
        }());
      }
      EXPECT_FALSE(resumed.next());
    }
  }
  EXPECT_EQ(dataset.iterate().skip(1000), static_cast<std::int64_t>(texts_.size()));
}

TEST_F(Records, OfManyBatchesResumeWithoutReadingFilesThatAreDone) {
  const std::string many = folder_.file("many");
  {
    TFRecordWriter writer(many);
    for (int i = 0; i < 10000; ++i) writer.write(std::to_string(i));
  }
  const auto batches = TFRecordDataset({files_[0], many}).batch(10);
  auto it = batches.iterate();
  for (int i = 0; i < 900; ++i) ASSERT_TRUE(it.next());
  const IteratorState state = it.save();
  std::filesystem::resize_file(files_[0], 3);  // a damaged file that nobody may look at any more
  auto resumed = batches.resume(state);
  EXPECT_EQ(resumed.next()->values().front(), std::to_string(9000 - 5));
}

TEST_F(Records, AfterADamagedOneGoOnBehindIt) {
  std::string bytes = file_content(files_[0]);
  bytes[14] ^= 1;
  folder_.file("part-0", bytes);
  const auto dataset = TFRecordDataset(files_);
  auto it = dataset.iterate();
  expect_error([&] { it.next(); }, Code::DataLoss, errors::kRecord, {"record 0 at byte 0 of " + files_[0]});
  EXPECT_EQ(*it.next(), texts_[1]);
  EXPECT_EQ(read_through(dataset), std::pair(Texts(texts_.begin() + 1, texts_.end()), 1));
  const auto lenient = TFRecordDataset(files_, {.on_damage = OnDamage::Skip});
  EXPECT_EQ(lenient.to_vector(), Texts(texts_.begin() + 1, texts_.end()));
}

TEST_F(Records, AfterALostFrameGoOnWithTheNextFile) {
  std::string bytes = file_content(files_[0]);
  bytes[25] ^= 1;  // the second record's length
  folder_.file("part-0", bytes);
  Texts expected(texts_.begin() + 5, texts_.end());
  expected.insert(expected.begin(), texts_[0]);
  EXPECT_EQ(read_through(TFRecordDataset(files_)), std::pair(expected, 1));
}

/// What stands at each place, "error" where it fails.
template <class T>
Texts places_of(DatasetIterator<T> it) {
  Texts places;
  while (places.size() < 100) {
    try {
      const auto element = it.next();
      if (!element) return places;
      if constexpr (std::is_same_v<T, std::string>) {
        places.push_back(*element);
      } else {
        places.push_back(std::to_string(element->template item<std::int64_t>()));
      }
    } catch (const Error&) {
      places.emplace_back("error");
    }
  }
  return places;
}

/// Read, skipped over and resumed, the places of a dataset must be the same.
template <class T>
void expect_same_places(const Dataset<T>& dataset, const Texts& expected) {
  ASSERT_EQ(places_of(dataset.iterate()), expected);
  auto reader = dataset.iterate();
  for (std::size_t at = 0; at <= expected.size(); ++at) {
    const Texts rest(expected.begin() + static_cast<std::ptrdiff_t>(at), expected.end());
    EXPECT_EQ(places_of(dataset.skip(static_cast<std::int64_t>(at)).iterate()), rest) << "skipped " << at;
    EXPECT_EQ(places_of(dataset.resume(reader.save())), rest) << "resumed at " << at;
    try {
      reader.next();
    } catch (const Error&) {
    }
  }
}

TEST(DamagedFiles, KeepTheirPlacesWhenTheyAreSkippedOrResumed) {
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    const TempDir folder;
    Texts files;
    for (const int first : {0, 100, 200}) {
      files.push_back(folder.file(std::to_string(first)));
      TFRecordWriter writer(files.back(), compression);
      for (int i = 0; i < 5; ++i) writer.write(std::to_string(first + i) + std::string(20, '.'));
    }
    const auto dataset = TFRecordDataset(files, {.compression = compression}).map([](const std::string& record) {
      return record.substr(0, record.find('.'));
    });
    if (compression == Compression::None) {
      std::string bytes = file_content(files[1]);
      bytes[3 * 39 + 2] ^= 1;  // the length of the fourth record
      folder.file("100", bytes);
      expect_same_places(dataset,
                         {"0", "1", "2", "3", "4", "100", "101", "102", "error", "200", "201", "202", "203", "204"});
      expect_same_places(dataset.shard(2, 1), {"1", "3", "100", "102", "200", "202", "204"});
      std::filesystem::resize_file(files[1], 3 * 39 + 20);
    } else {
      std::filesystem::resize_file(files[1], file_content(files[1]).size() - 12);
    }
    const Texts places = places_of(dataset.iterate());
    ASSERT_EQ(std::ranges::count(places, "error"), 1);
    expect_same_places(dataset, places);
  }
}

TEST(DamagedFiles, OfLinesAndRowsKeepTheirPlacesToo) {
  const TempDir folder;
  const Texts texts{folder.file("a", "1\n2\n"), folder.file("b", "3\n4\nlonger than allowed\n5\n"),
                    folder.file("c", "6\n7\n")};
  expect_same_places(TextLineDataset(texts, {.max_line_bytes = 5}), {"1", "2", "3", "4", "error", "6", "7"});
  const Texts tables{folder.file("d", "1,1\n2,2\n"), folder.file("e", "3,3\n4,4\n5,5,5\n6,6\n"),
                     folder.file("f", "7,7\n8,8\n")};
  const auto rows =
      CsvDataset<std::tuple<at::Tensor>>(tables, {.columns = {{.type = CsvType::Int64, .index = 0}}, .header = false});
  expect_same_places(rows.map([](const std::tuple<at::Tensor>& row) { return std::get<0>(row); }),
                     {"1", "2", "3", "4", "error", "6", "7", "8"});
}

TEST_F(Records, OfAMissingFileAreOneError) {
  const Texts files{files_[0], folder_.file("none"), files_[2]};
  EXPECT_EQ(read_through(TFRecordDataset(files)), std::pair(texts_, 1));
  auto it = TFRecordDataset(files).iterate();
  EXPECT_EQ(it.skip(6), 6) << "the missing file counts as one";
  EXPECT_EQ(*it.next(), texts_[5]);
}

TEST_F(Records, AreTheSameFromListedFiles) {
  const std::string pattern = folder_.file("part-*");
  EXPECT_EQ(TFRecordDataset(list_files(pattern, {.shuffle = false})).to_vector(), texts_);
  EXPECT_EQ(list_files(pattern, {.shuffle = false}).stage()->kind(), "list_files");
  EXPECT_EQ(list_files(pattern).cardinality(), Cardinality(3));
  const auto seeded = [&] { return list_files(pattern, {.seed = 5}); };
  EXPECT_EQ(seeded().to_vector(), seeded().to_vector());
  auto shuffled = seeded().to_vector();
  std::ranges::sort(shuffled);
  EXPECT_EQ(shuffled, files_);
  EXPECT_THROW(list_files(folder_.file("none-*")), NotFound);
}

TEST_F(Records, ResumeWithinWholePipelines) {
  const auto pipeline = [&](int parallel_calls) {
    return list_files(folder_.file("part-*"), {.seed = 3})
        .interleave([](const std::string& file) { return TFRecordDataset(file); },
                    {.cycle_length = 2, .parallel_calls = parallel_calls})
        .shuffle(4, {.seed = 1})
        .repeat(2)
        .batch(5)
        .prefetch(2);
  };
  for (const int parallel_calls : {0, 2}) {
    const auto dataset = pipeline(parallel_calls);
    std::vector<Strings> whole;
    std::vector<IteratorState> states;
    auto it = dataset.iterate();
    for (;;) {
      states.push_back(it.save());
      auto batch = it.next();
      if (!batch) break;
      whole.push_back(std::move(*batch));
    }
    ASSERT_EQ(whole.size(), 5u);
    for (std::size_t at = 0; at < states.size(); ++at) {
      auto resumed = dataset.resume(states[at]);
      for (std::size_t i = at; i < whole.size(); ++i) {
        const auto batch = resumed.next();
        ASSERT_TRUE(batch) << at;
        EXPECT_EQ(*batch, whole[i]) << "from " << at << ", batch " << i;
      }
      EXPECT_FALSE(resumed.next());
    }
  }
}

TEST_F(Records, ThatAreDamagedCanBeLeftOutByAStage) {
  std::string bytes = file_content(files_[0]);
  bytes[14] ^= 1;
  folder_.file("part-0", bytes);
  EXPECT_EQ(TFRecordDataset(files_).ignore_errors().to_vector(), Texts(texts_.begin() + 1, texts_.end()));
}

TEST(TextLineDataset, ReadsLinesOfAllFiles) {
  const TempDir folder;
  const auto dataset = TextLineDataset({folder.file("a", "1\n2\r\n"), folder.file("b", "3")});
  EXPECT_EQ(dataset.to_vector(), (Texts{"1", "2", "3"}));
  EXPECT_EQ(dataset.stage()->kind(), "text_line");
  auto it = dataset.iterate();
  it.skip(2);
  EXPECT_EQ(*dataset.resume(it.save()).next(), "3");
}

TEST(FixedLengthRecordDataset, ReadsRecordsOfAllFiles) {
  const TempDir folder;
  const auto dataset = FixedLengthRecordDataset({folder.file("a", "Habcd"), folder.file("b", "Hef")},
                                                {.record_bytes = 2, .header_bytes = 1});
  EXPECT_EQ(dataset.to_vector(), (Texts{"ab", "cd", "ef"}));
  EXPECT_EQ(dataset.stage()->describe(), "fixed_length_record(2 bytes)");
}

TEST(CsvDataset, GivesTheColumnsAskedFor) {
  const TempDir folder;
  const std::string path = folder.file("a.csv", "id,height,name\n1,1.5,Ann\n2,,\"B,b\"\n");
  const CsvOptions options{.columns = {{.type = CsvType::String, .name = "name"},
                                       {.type = CsvType::Float32, .name = "height", .default_value = "-1"},
                                       {.type = CsvType::Int64, .name = "id"}}};
  using Person = std::tuple<std::string, float, at::Tensor>;
  const auto people = CsvDataset<Person>(path, options);
  const auto rows = people.to_vector();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(std::get<0>(rows[1]), "B,b");
  EXPECT_EQ(std::get<1>(rows[1]), -1.0F);
  EXPECT_EQ(std::get<2>(rows[1]).item<std::int64_t>(), 2);
  const auto batch = people.batch(2).to_vector().front();
  EXPECT_EQ(std::get<0>(batch), (Strings{"Ann", "B,b"}));
  EXPECT_TRUE(at::equal(std::get<1>(batch), at::tensor({1.5F, -1.0F})));
  EXPECT_EQ(to_string(people.element_spec()), "(bytes[], float32[], int64[])");

  const auto numbers = CsvDataset(path, {.columns = {{.type = CsvType::Int32, .name = "id"}}});
  EXPECT_EQ(numbers.to_vector()[1][0].scalar_type(), at::kInt);
  EXPECT_THROW(CsvDataset<Person>(path, {.columns = {{CsvType::Int32}}}), InvalidArgument);
  EXPECT_THROW(CsvDataset(path, {}), InvalidArgument);
}

TEST(CsvDataset, GoesOnBehindARecordWithAnotherNumberOfFields) {
  const TempDir folder;
  const auto errors = std::make_shared<ErrorCounter>();
  const auto rows = CsvDataset<std::tuple<std::int64_t, std::int64_t>>(folder.file("a", "a,b\n1,2\n3\n4,5\n6,7,8\n9,10\n"),
                                                                       {.columns = {{CsvType::Int64}, {CsvType::Int64}}});
  std::vector<std::int64_t> firsts;
  for (const auto& [first, second] : rows.ignore_errors({.counter = errors}).to_vector()) firsts.push_back(first);
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{1, 4, 9}));
  auto skipped = rows.skip(2).iterate();
  EXPECT_EQ(std::get<0>(*skipped.next()), 4) << "a record that fails keeps its place";
}

TEST(CsvDataset, NumbersThatDoNotFitTheTypeOfTheDatasetAreErrors) {
  const TempDir folder;
  const std::string path = folder.file("a", "9999999999,1.5,2\n");
  const auto read = [&](auto number, CsvType type, int column) {
    using Number = decltype(number);
    return std::get<0>(
        *CsvDataset<std::tuple<Number>>(path, {.columns = {{.type = type, .index = column}}, .header = false}).iterate().next());
  };
  EXPECT_EQ(read(std::int64_t{}, CsvType::Int64, 0), 9999999999);
  EXPECT_EQ(read(std::int64_t{}, CsvType::Float32, 2), 2);
  EXPECT_THROW(read(std::int32_t{}, CsvType::Int64, 0), InvalidArgument);
  EXPECT_THROW(read(std::int64_t{}, CsvType::Float32, 1), InvalidArgument);
}

TEST(CsvDataset, GoesOnBehindAFieldThatDoesNotFit) {
  const TempDir folder;
  const auto numbers =
      CsvDataset<std::tuple<std::int64_t>>(folder.file("a", "n\n1\nx\n3\n"), {.columns = {{CsvType::Int64}}});
  auto it = numbers.iterate();
  EXPECT_EQ(std::get<0>(*it.next()), 1);
  expect_error([&] { it.next(); }, Code::InvalidArgument, errors::kCsv, {"record 1 (line 3)"});
  EXPECT_EQ(std::get<0>(*it.next()), 3);
  EXPECT_FALSE(it.next());
}

TEST(FromNpy, GathersRowsOfTheMappedFile) {
  const TempDir folder;
  const at::Tensor all = at::arange(60).view({10, 2, 3});
  write_npy(folder.file("a.npy"), all);
  const auto rows = from_npy(folder.file("a.npy"));
  EXPECT_EQ(rows.cardinality(), Cardinality(10));
  EXPECT_EQ(to_string(rows.element_spec()), "int64[2, 3]");
  EXPECT_NE(rows.stage()->row_source(), nullptr);
  EXPECT_EQ(rows.stage()->kind(), "from_npy");
  const auto batches = rows.batch(4).to_vector();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(at::equal(batches[1], all.slice(0, 4, 8)));
  EXPECT_TRUE(at::equal(rows.to_vector()[9], all[9]));
  expect_error([&] { from_npy(folder.file("b.npy", "x")); }, Code::DataLoss, errors::kNpy, {"b.npy"});
  write_npy(folder.file("s.npy"), at::scalar_tensor(1));
  expect_error([&] { from_npy(folder.file("s.npy")); }, Code::InvalidArgument, errors::kShape, {"single number"});
}

TEST(NpyTensor, ComesBackInEveryTypeAndOrder) {
  const TempDir folder;
  for (const at::ScalarType dtype : {at::kBool, at::kChar, at::kShort, at::kInt, at::kLong, at::kByte, at::kHalf,
                                     at::kFloat, at::kDouble, at::kComplexFloat}) {
    const at::Tensor tensor = at::arange(6).view({2, 3}).to(dtype);
    write_npy(folder.file("t"), tensor.t());
    const at::Tensor back = npy_tensor(folder.file("t"));
    EXPECT_EQ(back.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(back, tensor.t())) << dtype;
  }
  const at::Tensor column_major = at::arange(6).view({2, 3}).to(at::kInt);
  const at::Tensor transposed = column_major.t().contiguous();
  write_npy(folder.file("f"), NpyType::Int32, {2, 3},
            {static_cast<const char*>(transposed.const_data_ptr()), transposed.nbytes()}, true);
  EXPECT_TRUE(at::equal(npy_tensor(folder.file("f")), column_major));
  EXPECT_TRUE(at::equal(from_npy(folder.file("f")).batch(2).to_vector()[0], column_major));
  EXPECT_THROW(write_npy(folder.file("b"), at::zeros({1}, at::kBFloat16)), Unimplemented);
}

TEST(NpyTensor, CanBeWrittenToWithoutTouchingTheFile) {
  const TempDir folder;
  write_npy(folder.file("t"), at::zeros({4}));
  const at::Tensor mapped = npy_tensor(folder.file("t"));
  mapped.fill_(1);
  EXPECT_TRUE(at::equal(npy_tensor(folder.file("t")), at::zeros({4})));
}

struct Digits {
  at::Tensor image, label;
};

class Examples : public ::testing::Test {
 protected:
  Examples() {
    path_ = folder_.file("examples");
    TFRecordWriter writer(path_);
    for (std::int64_t i = 0; i < 5; ++i) {
      writer.write(write_example({{"image", std::vector<float>{static_cast<float>(i), 0.5F}},
                                  {"label", std::vector<std::int64_t>{i}},
                                  {"name", std::vector<std::string>{"n" + std::to_string(i)}},
                                  {"tags", std::vector<std::int64_t>(static_cast<std::size_t>(i), 7)}}));
    }
    writer.close();
  }

  Dataset<std::string> records() const { return TFRecordDataset(path_); }

  TempDir folder_;
  std::string path_;
  FeatureSpec spec_{{"image", FixedLenFeature{FeatureType::Float, {2, 1}}},
                    {"label", FixedLenFeature{FeatureType::Int64, {}}}};
};

TEST_F(Examples, BecomeOneTensorPerFeatureOfABatch) {
  const auto digits = parse_example<Digits>(records().batch(3), spec_, {"image", "label"});
  EXPECT_EQ(to_string(digits.element_spec()), "(float32[?, 2, 1], int64[?])");
  const auto batches = digits.to_vector();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_TRUE(at::equal(batches[0].image.view({3, 2}), at::tensor({0.F, .5F, 1.F, .5F, 2.F, .5F}).view({3, 2})));
  EXPECT_EQ(batches[0].image.sizes(), (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_EQ(integers(batches[1].label), (std::vector<std::int64_t>{3, 4}));
  const auto swapped = parse_example<std::pair<at::Tensor, at::Tensor>>(records().batch(5), spec_, {"label", "image"});
  EXPECT_EQ(integers(swapped.to_vector()[0].first), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST_F(Examples, AreTheSameRecordByRecord) {
  const auto one_by_one = parse_example<Digits>(records(), spec_, {"image", "label"});
  EXPECT_EQ(to_string(one_by_one.element_spec()), "(float32[2, 1], int64[])");
  const auto batched = one_by_one.batch(5).to_vector()[0];
  const auto at_once = parse_example<Digits>(records().batch(5), spec_, {"image", "label"}).to_vector()[0];
  EXPECT_TRUE(at::equal(batched.image, at_once.image));
  EXPECT_TRUE(at::equal(batched.label, at_once.label));
}

TEST_F(Examples, BecomeAMapByDefault) {
  spec_.emplace("tags", VarLenFeature{FeatureType::Int64});
  const auto batch = parse_example(records().batch(3), spec_).to_vector()[0];
  ASSERT_EQ(batch.size(), 4u);
  EXPECT_EQ(integers(batch.at("label")), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(batch.at("tags").sizes(), (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(integers(batch.at("tags")), (std::vector<std::int64_t>{0, 0, 7, 0, 7, 7}));
  EXPECT_EQ(integers(batch.at("tags.lengths")), (std::vector<std::int64_t>{0, 1, 2}));
  const auto third = parse_example(records(), spec_).to_vector()[2];
  EXPECT_EQ(integers(third.at("tags")), (std::vector<std::int64_t>{7, 7}));
  EXPECT_EQ(third.at("tags.lengths").item<std::int64_t>(), 2);
}

TEST_F(Examples, KeepByteStrings) {
  const FeatureSpec spec{{"name", FixedLenFeature{FeatureType::Bytes, {}}}};
  EXPECT_EQ(parse_example<std::string>(records(), spec).to_vector(), (Texts{"n0", "n1", "n2", "n3", "n4"}));
  EXPECT_EQ(parse_example<Strings>(records().batch(5), spec).to_vector()[0], (Strings{"n0", "n1", "n2", "n3", "n4"}));
}

TEST_F(Examples, ReuseTheMemoryOfBatchesThatAreGone) {
  const FeatureSpec spec{{"image", FixedLenFeature{FeatureType::Float, {2}}}};
  const std::string path = folder_.file("many");
  {
    TFRecordWriter writer(path);
    for (int i = 0; i < 30000; ++i) writer.write(write_example({{"image", std::vector<float>{1, 2}}}));
  }
  auto it = parse_example<at::Tensor>(TFRecordDataset(path).batch(10000), spec).iterate();
  const void* first = it.next()->const_data_ptr();
  EXPECT_EQ(it.next()->const_data_ptr(), first);
}

TEST_F(Examples, ResumeAndSkipAsTheirRecords) {
  const auto labels = parse_example<std::pair<at::Tensor, at::Tensor>>(records().batch(2), spec_, {"label", "image"});
  auto it = labels.iterate();
  EXPECT_EQ(it.skip(1), 1);
  auto resumed = labels.resume(it.save());
  EXPECT_EQ(integers(resumed.next()->first), (std::vector<std::int64_t>{2, 3}));
}

TEST_F(Examples, TellWhatDoesNotFit) {
  spec_.emplace("missing", FixedLenFeature{FeatureType::Float, {}});
  const auto digits = parse_example(records().batch(2), spec_);
  expect_error(
      [&] { digits.iterate().next(); }, Code::InvalidArgument, errors::kFeature,
      {"feature 'missing' is required", "record 0 at byte 0 of " + path_, "parse_example(image, label, missing)"});
  expect_error([&] { digits.iterate({.meter = std::make_shared<StageMeter>()}).next(); }, Code::InvalidArgument,
               errors::kFeature, {"record 0 at byte 0 of " + path_});
}

TEST_F(Examples, TellFileAndRecordWhereTheyAreKnown) {
  // Two files of five records, of which the fourth of the second is broken.
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    const std::vector<std::string> files{folder_.file("first"), folder_.file("second")};
    std::uint64_t start = 0;  // of the broken record
    for (const std::string& file : files) {
      TFRecordWriter writer(file, compression);
      for (std::int64_t i = 0; i < 5; ++i) {
        std::string record = write_example(
            {{"image", std::vector<float>{static_cast<float>(i), 0.5F}}, {"label", std::vector<std::int64_t>{i}}});
        if (file == files[1] && i == 3) record.pop_back();
        if (file == files[1] && i < 3) start += record.size() + 16;
        writer.write(record);
      }
      writer.close();
    }
    const auto records = TFRecordDataset(files, {.compression = compression});
    const std::string place = str("record 3 at byte ", start, " of ", files[1]);
    const auto expect_place = [&](const auto& digits, const std::string& wanted) {
      expect_error([&] { digits.to_vector(); }, Code::DataLoss, errors::kExample,
                   {"is no tf.train.Example", wanted, "parse_example(image, label)"}, digits.to_string());
    };
    const std::vector<std::string> names{"image", "label"};
    expect_place(parse_example<Digits>(records, spec_, names), place);
    expect_place(parse_example<Digits>(records.prefetch(2), spec_, names), place);
    expect_place(parse_example<Digits>(records.batch(3), spec_, names), place);
    expect_place(parse_example<Digits>(records.batch(3).prefetch(2), spec_, names), place);
    expect_place(parse_example<Digits>(records.shuffle(1), spec_, names), "element 8");
    expect_place(parse_example<Digits>(records.shuffle(1).batch(3), spec_, names), "row 2 of batch 2");

    const auto digits = parse_example<Digits>(records.batch(3), spec_, names);
    auto reader = digits.iterate();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(reader.next());
    auto resumed = digits.resume(reader.save());
    expect_error([&] { resumed.next(); }, Code::DataLoss, errors::kExample, {place});
    auto skipping = parse_example<Digits>(records.shuffle(1), spec_, names).iterate();
    skipping.skip(8);
    expect_error([&] { skipping.next(); }, Code::DataLoss, errors::kExample, {"element 8"});
  }
}

TEST_F(Examples, RefuseResultsThatCannotHoldThem) {
  const auto refused = [](const std::function<void()>& make, const std::string& fragment) {
    expect_error(make, Code::InvalidArgument, errors::kFeature, {fragment, "parse_example"});
  };
  refused([&] { parse_example<Digits>(records(), spec_); }, "order of the features");
  refused([&] { parse_example<Digits>(records(), spec_, {"image", "other"}); }, "no feature 'other'");
  refused([&] { parse_example<Digits>(records(), spec_, {"image", "image"}); }, "named twice");
  refused([&] { parse_example<at::Tensor>(records(), spec_, {"image"}); }, "not asked for");
  const FeatureSpec lengths{{"v", VarLenFeature{FeatureType::Int64}},
                            {"v.lengths", FixedLenFeature{FeatureType::Int64, {}}}};
  refused([&] { parse_example(records(), lengths); }, "two fields with the name 'v.lengths'");
  refused([&] { parse_example(records().batch(2), lengths); }, "two fields with the name 'v.lengths'");
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  EXPECT_NO_THROW(parse_example<Three>(records(), lengths, {"v", "v.lengths"}));
  refused([&] { parse_example<at::Tensor>(records(), spec_, {"image", "label"}); }, "1 field");
  refused([&] { parse_example(records(), {{"name", FixedLenFeature{FeatureType::Bytes, {}}}}); }, "map of tensors");
  refused(
      [&] {
        parse_example<Strings>(records().batch(2), {{"name", VarLenFeature{FeatureType::Bytes}}});
      },
      "several byte strings");
}

TEST_F(Examples, ShowTheirPipeline) {
  const auto digits = parse_example<Digits>(records().batch(3), spec_, {"image", "label"});
  EXPECT_EQ(digits.to_string().find(
                "parse_example(image, label)\n└─ batch(3)\n   └─ tfrecord()\n      └─ from_tensor_slices("),
            0u)
      << digits.to_string();
}

}  // namespace
}  // namespace lockstep::data
