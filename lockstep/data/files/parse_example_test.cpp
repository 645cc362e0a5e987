#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/data/files/files.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/tfrecord.h"
#include "tests/support/expect_error.h"
#include "tests/support/resume.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::data {
namespace {

using Texts = std::vector<std::string>;

std::vector<std::int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

struct Digits {
  at::Tensor image, label;
};

class Examples : public ::testing::Test {
 protected:
  Examples() {
    path_ = folder_ / "examples";
    TFRecordWriter writer(path_);
    for (std::int64_t i = 0; i < 5; ++i) {
      writer.write(write_example({{"image", std::vector<float>{static_cast<float>(i), 0.5F}},
                                  {"label", std::vector<std::int64_t>{i}},
                                  {"name", std::vector<std::string>{"n" + std::to_string(i)}},
                                  {"tags", std::vector<std::int64_t>(static_cast<std::size_t>(i), 7)}}));
    }
    writer.close();
  }

  Dataset<std::string> records() const { return tfrecord_dataset(path_); }

  TemporaryFolder folder_;
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
  const std::string path = folder_ / "many";
  {
    TFRecordWriter writer(path);
    for (int i = 0; i < 30000; ++i) writer.write(write_example({{"image", std::vector<float>{1, 2}}}));
  }
  auto it = parse_example<at::Tensor>(tfrecord_dataset(path).batch(10000), spec).iterator();
  const void* first = it.next()->const_data_ptr();
  EXPECT_EQ(it.next()->const_data_ptr(), first);
}

TEST_F(Examples, ResumeAndSkipAsTheirRecords) {
  const auto labels = parse_example<std::pair<at::Tensor, at::Tensor>>(records().batch(2), spec_, {"label", "image"});
  auto it = labels.iterator();
  EXPECT_EQ(it.skip(1), 1);
  auto resumed = resume(labels, it.state());
  EXPECT_EQ(integers(resumed.next()->first), (std::vector<std::int64_t>{2, 3}));
}

TEST_F(Examples, TellWhatDoesNotFit) {
  spec_.emplace("missing", FixedLenFeature{FeatureType::Float, {}});
  const auto digits = parse_example(records().batch(2), spec_);
  expect_error(
      [&] { digits.iterator().next(); }, Code::InvalidArgument, errors::kFeature,
      {"feature 'missing' is required", "record 0 at byte 0 of " + path_, "parse_example(image, label, missing)"});
  expect_error([&] { digits.iterator({.meter = std::make_shared<StageMeter>()}).next(); }, Code::InvalidArgument,
               errors::kFeature, {"record 0 at byte 0 of " + path_});
}

TEST_F(Examples, TellFileAndRecordWhereTheyAreKnown) {
  // Two files of five records; the fourth of the second is broken.
  for (const Compression compression : {Compression::None, Compression::Gzip}) {
    const std::vector<std::string> files{folder_ / "first", folder_ / "second"};
    std::uint64_t start = 0;  // offset of the broken record
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
    const auto records = tfrecord_dataset(files, {.compression = compression});
    const std::string place = str("record 3 at byte ", start, " of ", files[1]);
    const auto expect_place = [&](const auto& digits, const std::string& wanted) {
      expect_error([&] { digits.to_vector(); }, Code::DataLoss, errors::kExample,
                   {"is not a tf.train.Example", wanted, "parse_example(image, label)"}, digits.to_string());
    };
    const std::vector<std::string> names{"image", "label"};
    expect_place(parse_example<Digits>(records, spec_, names), place);
    expect_place(parse_example<Digits>(records.prefetch(2), spec_, names), place);
    expect_place(parse_example<Digits>(records.batch(3), spec_, names), place);
    expect_place(parse_example<Digits>(records.batch(3).prefetch(2), spec_, names), place);
    expect_place(parse_example<Digits>(records.shuffle(1), spec_, names), "element 8");
    expect_place(parse_example<Digits>(records.shuffle(1).batch(3), spec_, names), "row 2 of batch 2");

    const auto digits = parse_example<Digits>(records.batch(3), spec_, names);
    auto reader = digits.iterator();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(reader.next());
    auto resumed = resume(digits, reader.state());
    expect_error([&] { resumed.next(); }, Code::DataLoss, errors::kExample, {place});
    auto skipping = parse_example<Digits>(records.shuffle(1), spec_, names).iterator();
    skipping.skip(8);
    expect_error([&] { skipping.next(); }, Code::DataLoss, errors::kExample, {"element 8"});
  }
}

TEST_F(Examples, RefuseResultsThatCannotHoldThem) {
  const auto refused = [](const std::function<void()>& make, const std::string& fragment) {
    expect_error(make, Code::InvalidArgument, errors::kFeature, {fragment, "parse_example"});
  };
  refused([&] { parse_example<Digits>(records(), spec_); }, "order of the features");
  refused(
      [&] {
        parse_example<Digits>(records(), spec_, {"image", "other"});
      },
      "feature 'other' is not in the FeatureSpec");
  refused([&] { parse_example<Digits>(records(), spec_, {"image", "image"}); }, "named twice");
  refused([&] { parse_example<at::Tensor>(records(), spec_, {"image"}); }, "is not named");
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
  EXPECT_EQ(digits.to_string().find("parse_example(image, label)\n└─ batch(3)\n   └─ tfrecord(1 file: " + path_ +
                                    ")\n      └─ from_tensor_slices(1 row: "),
            0u)
      << digits.to_string();
}

}  // namespace
}  // namespace lockstep::data
