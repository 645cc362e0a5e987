#include "lockstep/data/files/files.h"
#include "lockstep/data/format/tfrecord.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "lockstep/data/format/npy.h"
#include "lockstep/data/pipeline.h"
#include "tests/support/expect_error.h"
#include "tests/support/resume.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Texts = std::vector<std::string>;

/// Three files with 5, 0 and 7 records.
class Records : public ::testing::Test {
 protected:
  Records() {
    int number = 0;
    for (const int count : {5, 0, 7}) {
      files_.push_back(folder_ / ("part-" + std::to_string(files_.size())));
      TFRecordWriter writer(files_.back());
      for (int i = 0; i < count; ++i) {
        texts_.push_back("record " + std::to_string(number++));
        writer.write(texts_.back());
      }
      writer.close();
    }
  }

  // Reads to the end, skipping and counting failures.
  static std::pair<Texts, int> read_through(const Dataset<std::string>& dataset) {
    Texts texts;
    int failed = 0;
    for (auto it = dataset.iterator();;) {
      try {
        auto text = it.next();
        if (!text) return {texts, failed};
        texts.push_back(*text);
      } catch (const Error&) {
        if (++failed > 100) throw;
      }
    }
  }

  TemporaryFolder folder_;
  Texts files_;
  Texts texts_;
};

TEST_F(Records, ComeFromAllFilesInOrder) {
  EXPECT_EQ(tfrecord_dataset(files_).to_vector(), texts_);
  EXPECT_EQ(tfrecord_dataset(from_tensor_slices(files_)).to_vector(), texts_);
  EXPECT_EQ(tfrecord_dataset(matching_files({folder_ / "part-*"})).to_vector(), texts_);
  EXPECT_EQ(tfrecord_dataset(files_[0]).to_vector(), Texts(texts_.begin(), texts_.begin() + 5));
  EXPECT_EQ(tfrecord_dataset(files_).element_spec(), (ElementSpec{{{ComponentSpec::bytes()}}}));
  EXPECT_TRUE(tfrecord_dataset(files_).cardinality().is_unknown());
  const auto line = [](const Dataset<std::string>& dataset) { return dataset.stage()->describe(); };
  EXPECT_EQ(line(tfrecord_dataset(files_, {.compression = Compression::Gzip})),
            "tfrecord(3 files: " + files_[0] + ", ...; GZIP)");
  EXPECT_EQ(line(tfrecord_dataset(files_[1])), "tfrecord(1 file: " + files_[1] + ")");
  EXPECT_EQ(line(tfrecord_dataset(list_files(folder_ / "part-*"))), "tfrecord(3 files)");
  EXPECT_EQ(line(tfrecord_dataset(from_tensor_slices(files_).filter([](const std::string&) { return true; }))),
            "tfrecord");
  EXPECT_EQ(line(tfrecord_dataset(folder_ / (std::string(200, 'x')))).size(),
            std::string("tfrecord(1 file: ...)").size() + 80);
  const auto batches = tfrecord_dataset(files_).batch(8).to_vector();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[1], Strings(Texts(texts_.begin() + 8, texts_.end())));
}

TEST_F(Records, GoOnFromEverySavedPosition) {
  const auto dataset = tfrecord_dataset(files_);
  for (std::size_t at = 0; at <= texts_.size(); ++at) {
    for (const bool by_skip : {false, true}) {
      auto it = dataset.iterator();
      if (by_skip) {
        EXPECT_EQ(it.skip(static_cast<std::int64_t>(at)), static_cast<std::int64_t>(at));
      } else {
        for (std::size_t i = 0; i < at; ++i) ASSERT_TRUE(it.next());
      }
      auto resumed = resume(dataset, IteratorState::parse(it.state().serialize()));
      for (std::size_t i = at; i < texts_.size(); ++i) {
        const auto text = resumed.next();
        ASSERT_TRUE(text);
        EXPECT_EQ(*text, texts_[i]) << "from " << at;
        EXPECT_EQ(resumed.state(), [&] {
          auto plain = dataset.iterator({.job_seed = default_job_seed(), .epoch = it.state().epoch});
          plain.skip(static_cast<std::int64_t>(i + 1));
          auto state = plain.state();
          state.position = resumed.state().position;  // how a place is found may differ, but not the place
          return state;
        }());
      }
      EXPECT_FALSE(resumed.next());
    }
  }
  EXPECT_EQ(dataset.iterator().skip(1000), static_cast<std::int64_t>(texts_.size()));
}

TEST_F(Records, OfManyBatchesResumeWithoutReadingFilesThatAreDone) {
  const std::string many = folder_ / "many";
  {
    TFRecordWriter writer(many);
    for (int i = 0; i < 10000; ++i) writer.write(std::to_string(i));
  }
  const auto batches = tfrecord_dataset({files_[0], many}).batch(10);
  auto it = batches.iterator();
  for (int i = 0; i < 900; ++i) ASSERT_TRUE(it.next());
  const IteratorState state = it.state();
  std::filesystem::resize_file(files_[0], 3);  // a damaged file that must not be read again
  auto resumed = resume(batches, state);
  EXPECT_EQ(resumed.next()->values().front(), std::to_string(9000 - 5));
}

TEST_F(Records, AfterADamagedOneGoOnBehindIt) {
  std::string bytes = file_content(files_[0]);
  bytes[14] ^= 1;
  folder_.file("part-0", bytes);
  const auto dataset = tfrecord_dataset(files_);
  auto it = dataset.iterator();
  expect_error([&] { it.next(); }, Code::DataLoss, errors::kRecord, {"record 0 at byte 0 of " + files_[0]});
  EXPECT_EQ(*it.next(), texts_[1]);
  EXPECT_EQ(read_through(dataset), std::pair(Texts(texts_.begin() + 1, texts_.end()), 1));
  const auto lenient = tfrecord_dataset(files_, {.on_damage = OnDamage::Skip});
  EXPECT_EQ(lenient.to_vector(), Texts(texts_.begin() + 1, texts_.end()));
}

TEST_F(Records, AfterALostFrameGoOnWithTheNextFile) {
  std::string bytes = file_content(files_[0]);
  bytes[25] ^= 1;  // the second record's length
  folder_.file("part-0", bytes);
  Texts expected(texts_.begin() + 5, texts_.end());
  expected.insert(expected.begin(), texts_[0]);
  EXPECT_EQ(read_through(tfrecord_dataset(files_)), std::pair(expected, 1));
}

/// The element at each place, "error" if it fails.
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
    } catch (const std::exception&) {
      places.emplace_back("error");
    }
  }
  return places;
}

/// Whether read, skipped or resumed, the places of a dataset must be the same.
template <class T>
void expect_same_places(const Dataset<T>& dataset, const Texts& expected) {
  ASSERT_EQ(places_of(dataset.iterator()), expected);
  auto reader = dataset.iterator();
  for (std::size_t at = 0; at <= expected.size(); ++at) {
    const Texts rest(expected.begin() + static_cast<std::ptrdiff_t>(at), expected.end());
    EXPECT_EQ(places_of(dataset.skip(static_cast<std::int64_t>(at)).iterator()), rest) << "skipped " << at;
    EXPECT_EQ(places_of(resume(dataset, reader.state())), rest) << "resumed at " << at;
    auto skipping = dataset.iterator();
    EXPECT_EQ(skipping.skip(static_cast<std::int64_t>(at)), static_cast<std::int64_t>(at));
    EXPECT_EQ(places_of(std::move(skipping)), rest) << "passed over " << at;
    try {
      reader.next();
    } catch (const std::exception&) {
    }
  }
}

TEST(DamagedFiles, KeepTheirPlacesWhenTheyAreSkippedOrResumed) {
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    const TemporaryFolder folder;
    Texts files;
    for (const int first : {0, 100, 200}) {
      files.push_back(folder / (std::to_string(first)));
      TFRecordWriter writer(files.back(), compression);
      for (int i = 0; i < 5; ++i) writer.write(std::to_string(first + i) + std::string(20, '.'));
    }
    const auto dataset = tfrecord_dataset(files, {.compression = compression}).map([](const std::string& record) {
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
    const Texts places = places_of(dataset.iterator());
    ASSERT_EQ(std::ranges::count(places, "error"), 1);
    expect_same_places(dataset, places);
  }
}

TEST(DamagedFiles, OfLinesAndRowsKeepTheirPlacesToo) {
  const TemporaryFolder folder;
  const Texts texts{folder.file("a", "1\n2\n"), folder.file("b", "3\n4\nlonger than allowed\n5\n"),
                    folder.file("c", "6\n7\n")};
  expect_same_places(text_line_dataset(texts, {.max_line_bytes = 5}), {"1", "2", "3", "4", "error", "6", "7"});
  const Texts tables{folder.file("d", "1,1\n2,2\n"), folder.file("e", "3,3\n4,4\n5,5,5\n6,6\n"),
                     folder.file("f", "7,7\n8,8\n")};
  const auto rows =
      csv_dataset<std::tuple<at::Tensor>>(tables, {.columns = {{.type = CsvType::Int64, .index = 0}}, .header = false});
  expect_same_places(rows.map([](const std::tuple<at::Tensor>& row) { return std::get<0>(row); }),
                     {"1", "2", "3", "4", "error", "6", "7", "8"});
}

/// With three records each: "a0", "a1", "a2", "b0", ...
Texts four_files(const TemporaryFolder& folder) {
  Texts files;
  for (const std::string name : {"a", "b", "c", "d"}) {
    files.push_back(folder / name);
    TFRecordWriter writer(files.back());
    for (int i = 0; i < 3; ++i) writer.write(name + std::to_string(i));
  }
  return files;
}

TEST(NamesOfFiles, ThatFailKeepTheirPlaceAsMissingFilesDo) {
  const TemporaryFolder folder;
  const Texts files = four_files(folder);
  const std::string missing = folder / "none";
  struct Case {
    const char* name;
    std::vector<std::size_t> bad;
    Texts places;
  };
  const std::vector<Case> table{
      {"one in the middle", {1}, {"a0", "a1", "a2", "error", "c0", "c1", "c2", "d0", "d1", "d2"}},
      {"two in a row", {1, 2}, {"a0", "a1", "a2", "error", "error", "d0", "d1", "d2"}},
      {"first and last", {0, 3}, {"error", "b0", "b1", "b2", "c0", "c1", "c2", "error"}},
      {"all", {0, 1, 2, 3}, {"error", "error", "error", "error"}},
  };
  for (const Case& c : table) {
    SCOPED_TRACE(c.name);
    Texts bad;
    Texts with_missing = files;
    for (const std::size_t i : c.bad) {
      bad.push_back(files[i]);
      with_missing[i] = missing;
    }
    const auto fails = [bad](const std::string& name) { return std::ranges::find(bad, name) != bad.end(); };
    const auto map = [fails](const std::string& name) {
      if (fails(name)) throw std::runtime_error(name);
      return name;
    };
    const auto keep = [fails](const std::string& name) {
      if (fails(name)) throw InvalidArgument(errors::kBadOption, {.what = name});
      return true;
    };
    const auto names = from_tensor_slices(files);
    expect_same_places(tfrecord_dataset(with_missing), c.places);
    expect_same_places(tfrecord_dataset(names.map(map)), c.places);
    expect_same_places(tfrecord_dataset(names.filter(keep)), c.places);
    expect_same_places(tfrecord_dataset(names.map(map, {.parallel_calls = 2})), c.places);
  }
}

TEST(NamesOfFiles, ThatFailTakeNoGoodRowOutOfABatchBehindThem) {
  const TemporaryFolder folder;
  const Texts files = four_files(folder);
  const auto names = from_tensor_slices(files).map([bad = files[1]](const std::string& name) {
    if (name == bad) throw std::runtime_error(name);
    return name;
  });
  EXPECT_EQ(tfrecord_dataset(names).skip(4).batch(2).to_vector(),
            (std::vector<Strings>{{"c0", "c1"}, {"c2", "d0"}, {"d1", "d2"}}));
  EXPECT_EQ(tfrecord_dataset(names).shard(2, 1).skip(2).to_vector(), (Texts{"c1", "d0", "d2"}));
}

TEST_F(Records, OfAMissingFileAreOneError) {
  const Texts files{files_[0], folder_ / "none", files_[2]};
  EXPECT_EQ(read_through(tfrecord_dataset(files)), std::pair(texts_, 1));
  auto it = tfrecord_dataset(files).iterator();
  EXPECT_EQ(it.skip(6), 6) << "the missing file counts as one";
  EXPECT_EQ(*it.next(), texts_[5]);
}

TEST_F(Records, AreTheSameFromListedFiles) {
  const std::string pattern = folder_ / "part-*";
  EXPECT_EQ(tfrecord_dataset(list_files(pattern, {.shuffle = false})).to_vector(), texts_);
  EXPECT_EQ(list_files(pattern, {.shuffle = false}).stage()->kind(), "list_files");
  const std::string first = folder_ / "*0", last = folder_ / "*2";
  EXPECT_EQ(list_files({first, last}, {.shuffle = false}).to_vector(), (Texts{files_[0], files_[2]}));
  EXPECT_EQ(list_files({first.c_str(), last.c_str()}).cardinality(), Cardinality(2));
  EXPECT_EQ(list_files(pattern).cardinality(), Cardinality(3));
  const auto seeded = [&] { return list_files(pattern, {.seed = 5}); };
  EXPECT_EQ(seeded().to_vector(), seeded().to_vector());
  auto shuffled = seeded().to_vector();
  std::ranges::sort(shuffled);
  EXPECT_EQ(shuffled, files_);
  EXPECT_THROW(list_files(folder_ / "none-*"), NotFound);
}

TEST_F(Records, ResumeWithinWholePipelines) {
  const auto pipeline = [&](int parallel_calls) {
    return list_files(folder_ / "part-*", {.seed = 3})
        .interleave([](const std::string& file) { return tfrecord_dataset(file); },
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
    auto it = dataset.iterator();
    for (;;) {
      states.push_back(it.state());
      auto batch = it.next();
      if (!batch) break;
      whole.push_back(std::move(*batch));
    }
    ASSERT_EQ(whole.size(), 5u);
    for (std::size_t at = 0; at < states.size(); ++at) {
      auto resumed = resume(dataset, states[at]);
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
  EXPECT_EQ(tfrecord_dataset(files_).ignore_errors().to_vector(), Texts(texts_.begin() + 1, texts_.end()));
}

TEST(TextLineDataset, ReadsLinesOfAllFiles) {
  const TemporaryFolder folder;
  const auto dataset = text_line_dataset({folder.file("a", "1\n2\r\n"), folder.file("b", "3")});
  EXPECT_EQ(dataset.to_vector(), (Texts{"1", "2", "3"}));
  EXPECT_EQ(dataset.stage()->kind(), "text_line");
  auto it = dataset.iterator();
  it.skip(2);
  EXPECT_EQ(*resume(dataset, it.state()).next(), "3");
}

TEST(TextLineDataset, HasNoCarriageReturns) {
  const TemporaryFolder folder;
  const auto lines = text_line_dataset(folder.file("a", "one\r\ntwo\n\r\n\nfi\rve\r\r\nlast\r"));
  EXPECT_EQ(lines.to_vector(), (Texts{"one", "two", "", "", "five", "last"}));
  auto it = lines.iterator();
  it.skip(4);
  EXPECT_EQ(*resume(lines, it.state()).next(), "five");
}

TEST(FixedLengthRecordDataset, RefusesOptionsWhenItIsBuilt) {
  expect_error([] { fixed_length_record_dataset("nowhere", {}); }, Code::InvalidArgument, errors::kBadOption,
               {"record_bytes must be >= 1, got 0", "record_bytes = 0"});
}

// A position counts records: options that change the records of the files make a different pipeline.
TEST(ReaderDatasets, DifferByTheirOptionsInAState) {
  const TemporaryFolder folder;
  const std::string file = folder.file("a", "abcdefghijkl");
  const auto print = [](const Dataset<std::string>& dataset) { return fingerprint(*dataset.stage()); };
  const auto fixed = [&](std::uint64_t header, std::uint64_t footer) {
    return print(
        fixed_length_record_dataset(file, {.record_bytes = 2, .header_bytes = header, .footer_bytes = footer}));
  };
  EXPECT_EQ(std::set<std::string>({fixed(0, 0), fixed(2, 0), fixed(0, 2), fixed(2, 2)}).size(), 4u);
  EXPECT_NE(print(text_line_dataset(file)), print(text_line_dataset(file, {.max_line_bytes = 5})));
  EXPECT_EQ(print(text_line_dataset(file)), print(text_line_dataset(file, {.buffer_bytes = 5})));
  EXPECT_NE(print(tfrecord_dataset(file)), print(tfrecord_dataset(file, {.max_record_bytes = 5})));
}

TEST(FixedLengthRecordDataset, ReadsRecordsOfAllFiles) {
  const TemporaryFolder folder;
  const auto dataset = fixed_length_record_dataset({folder.file("a", "Habcd"), folder.file("b", "Hef")},
                                                   {.record_bytes = 2, .header_bytes = 1});
  EXPECT_EQ(dataset.to_vector(), (Texts{"ab", "cd", "ef"}));
  EXPECT_EQ(dataset.stage()->describe(), "fixed_length_record(2 files: " + folder / "a" + ", ...; 2 bytes, header 1)");
}

TEST(FromNpy, GathersRowsOfTheMappedFile) {
  const TemporaryFolder folder;
  const at::Tensor all = at::arange(60).view({10, 2, 3});
  write_npy(folder / "a.npy", all);
  const auto rows = from_npy(folder / "a.npy");
  EXPECT_EQ(rows.cardinality(), Cardinality(10));
  EXPECT_EQ(to_string(rows.element_spec()), "int64[2, 3]");
  EXPECT_NE(rows.stage()->row_source(), nullptr);
  EXPECT_EQ(rows.stage()->kind(), "from_npy");
  const auto batches = rows.batch(4).to_vector();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(at::equal(batches[1], all.slice(0, 4, 8)));
  EXPECT_TRUE(at::equal(rows.to_vector()[9], all[9]));
  expect_error([&] { from_npy(folder.file("b.npy", "x")); }, Code::DataLoss, errors::kNpy, {"b.npy"});
  write_npy(folder / "s.npy", at::scalar_tensor(1));
  expect_error([&] { from_npy(folder / "s.npy"); }, Code::InvalidArgument, errors::kShape, {"single number"});
}

TEST(NpyTensor, ComesBackInEveryTypeAndOrder) {
  const TemporaryFolder folder;
  for (const at::ScalarType dtype : {at::kBool, at::kChar, at::kShort, at::kInt, at::kLong, at::kByte, at::kHalf,
                                     at::kFloat, at::kDouble, at::kComplexFloat}) {
    const at::Tensor tensor = at::arange(6).view({2, 3}).to(dtype);
    write_npy(folder / "t", tensor.t());
    const at::Tensor back = npy_tensor(folder / "t");
    EXPECT_EQ(back.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(back, tensor.t())) << dtype;
  }
  const at::Tensor column_major = at::arange(6).view({2, 3}).to(at::kInt);
  const at::Tensor transposed = column_major.t().contiguous();
  write_npy(folder / "f", NpyType::Int32, {2, 3},
            {static_cast<const char*>(transposed.const_data_ptr()), transposed.nbytes()}, true);
  EXPECT_TRUE(at::equal(npy_tensor(folder / "f"), column_major));
  EXPECT_TRUE(at::equal(from_npy(folder / "f").batch(2).to_vector()[0], column_major));
  EXPECT_THROW(write_npy(folder / "b", at::zeros({1}, at::kBFloat16)), Unimplemented);
}

TEST(NpyTensor, CanBeWrittenToWithoutTouchingTheFile) {
  const TemporaryFolder folder;
  write_npy(folder / "t", at::zeros({4}));
  const at::Tensor mapped = npy_tensor(folder / "t");
  mapped.fill_(1);
  EXPECT_TRUE(at::equal(npy_tensor(folder / "t"), at::zeros({4})));
}

}  // namespace
}  // namespace lockstep::data
