#include "lockstep/train/logs/event_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/train/logs/event_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/hex.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

namespace event = detail::event;
using event::Value;

/// A clock that goes on by a second with every look.
EventFileOptions ticking(double from, std::optional<std::int64_t> resume_after = {}) {
  return {.resume_after = resume_after, .clock = [now = from - 1]() mutable { return now += 1; }};
}

TEST(EventFile, HasTheBytesOfTensorBoard) {
  const TemporaryFolder folder;
  double now = 1;
  EventFile file(folder / "train", {.clock = [&now] { return now; }});
  now = 2;
  file.scalar("loss", 7, 0.5);
  file.close();
  EXPECT_EQ(to_hex(file_content(file.path())),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
            "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f7373150000003fc33fc24a");
}

// Made by tests/interop/event_bytes.py with the messages of PyPI's tensorboard.
TEST(Event, HasTheBytesOfTensorBoardsOwnMessages) {
  const event::Moment moment{2, 7};
  const std::array<float, 4> numbers{-1, 0, 0.5F, 0.5F};
  const auto hparams =
      event::hparams(1.5, {{"adam", true}, {"lr", 0.125}, {"net", std::string("conv")}, {"zero", 0.0}}, {"epoch_loss"});
  const std::pair<std::string, std::string> rows[] = {
      {event::session_start(moment), "09000000000000004010073a020801"},
      {event::scalar(moment, "zero", 0), "09000000000000004010072a0d0a0b0a047a65726f1500000000"},
      {event::scalar({2, 0}, "first", -1.5F), "0900000000000000402a0e0a0c0a056669727374150000c0bf"},
      {event::histogram(moment, "h", Histogram(std::span<const float>(numbers))),
       "09000000000000004010072aa1010a9e010a01682a980109000000000000f0bf11000000000000e03f19000000000000"
       "104029000000000000f83f32382b14facdbe24f0bf08996919155aedbf000000000000000011ea2d819997713dfae55a"
       "25d31fde3fb03125ee8091e03fffffffffffffef7f3a380000000000000000000000000000f03f000000000000000000"
       "0000000000f03f000000000000000000000000000000400000000000000000"},
      {event::text(moment, "t", "*hi*"),
       "09000000000000004010072a210a1f0a0174420e080712041202080142042a68692a4a0a0a060a04746578742002"},
      {event::text(moment, "t", ""),
       "09000000000000004010072a1d0a1b0a0174420a080712041202080142004a0a0a060a04746578742002"},
      {hparams[0],
       "09000000000000f83f2a790a770a145f68706172616d735f2f6578706572696d656e74420e08011204120208012a0400"
       "0000004a4f0a4b0a0768706172616d731240123e19000000000000f83f22080a046164616d200222060a026c72200322"
       "070a036e6574200122080a047a65726f20032a0e0a0c120a65706f63685f6c6f73732002"},
      {hparams[1],
       "09000000000000f83f2a8c010a89010a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f420e08"
       "011204120208012a04000000004a590a550a0768706172616d73124a1a480a0a0a046164616d120220010a0f0a026c72"
       "120911000000000000c03f0a0d0a036e657412061a04636f6e760a110a047a65726f1209110000000000000000290000"
       "00000000f83f2002"},
  };
  for (const auto& [ours, theirs] : rows) EXPECT_EQ(to_hex(ours), theirs);
}

TEST(EventFile, IsReadBack) {
  const TemporaryFolder folder;
  EventFile file(folder.path().string(), ticking(10));
  const std::array<double, 2> numbers{1, 2};
  const std::array<std::uint8_t, 3> pixel{1, 2, 3};
  file.scalar("loss", 0, 0.25);
  file.scalar("loss", std::int64_t{1} << 40, std::numeric_limits<double>::infinity());
  file.histogram("weights", 1, Histogram(std::span<const double>(numbers)));
  file.image("picture", 2, {1, 1, 3, pixel});
  file.text("note", 3, "hello");
  file.hparams({{"lr", 0.1}});
  file.flush();
  const auto [events, damage] = event::read_events(file.path());
  EXPECT_EQ(damage, "");
  ASSERT_EQ(events.size(), 8);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].wall_time, 12);  // the name of the file has the first look, its version the second
  const std::vector<std::tuple<std::int64_t, std::string, Value::Kind>> wanted{
      {0, "loss", Value::Kind::Scalar},
      {std::int64_t{1} << 40, "loss", Value::Kind::Scalar},
      {1, "weights", Value::Kind::Histogram},
      {2, "picture", Value::Kind::Image},
      {3, "note", Value::Kind::Tensor},
      {0, "_hparams_/experiment", Value::Kind::Tensor},
      {0, "_hparams_/session_start_info", Value::Kind::Tensor}};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(events[i + 1].values.size(), 1);
    EXPECT_EQ(std::tuple(events[i + 1].step, events[i + 1].values[0].tag, events[i + 1].values[0].kind), wanted[i]);
  }
  EXPECT_EQ(events[1].values[0].scalar, 0.25);
  EXPECT_EQ(events[2].values[0].scalar, std::numeric_limits<double>::infinity());
}

TEST(EventFile, StartsASessionBehindTheLastStepThatCounts) {
  const TemporaryFolder folder;
  EventFile(folder.path().string(), ticking(1'800'000'000)).scalar("loss", 4, 1);
  // The clock has been set back: the name of the new file must still come last.
  EventFile resumed(folder.path().string(), ticking(1'700'000'000, 3));
  resumed.scalar("loss", 4, 2);
  resumed.close();
  const auto events = event::read_events(resumed.path()).events;
  ASSERT_EQ(events.size(), 4);
  for (const std::size_t start : {1u, 2u}) {  // TensorBoard's pages take no notice of the first one in a folder
    EXPECT_TRUE(events[start].starts_session);
    EXPECT_EQ(events[start].step, 4);
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) paths.push_back(entry.path().string());
  EXPECT_EQ(paths.size(), 2);
  EXPECT_EQ(*std::ranges::max_element(paths), resumed.path());
  EXPECT_TRUE(contains(resumed.path(), "/events.out.tfevents.1800000001.")) << resumed.path();
}

TEST(EventReader, TakesTheScalarsOfTensorFlow2) {
  for (const char* record :
       {"09000000000000004010032a200a1e0a0178420a080112002a040000003f4a0d0a090a077363616c6172732001",
        "09000000000000004010032a200a1e0a0178420a0801120022040000003f4a0d0a090a077363616c6172732001"}) {
    const auto read = event::read_event(from_hex(record));
    ASSERT_EQ(read.values.size(), 1);
    EXPECT_EQ(read.step, 3);
    EXPECT_EQ(read.values[0].tag, "x");
    EXPECT_EQ(read.values[0].kind, Value::Kind::Scalar);
    EXPECT_EQ(read.values[0].scalar, 0.5);
  }
}

TEST(EventReader, EndsAtDamageWithoutLosingWhatCameBefore) {
  const TemporaryFolder folder;
  EventFile file(folder.path().string());
  for (int step = 0; step < 3; ++step) file.scalar("loss", step, 1);
  file.close();
  const std::string bytes = file_content(file.path());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto read = event::read_events(folder.file("cut", std::string_view(bytes).substr(0, size)));
    EXPECT_LE(read.events.size(), 3) << size;
    EXPECT_EQ(read.damage.empty(), size == 0 || size == 40 || size == 80 || size == 122) << size;
  }
  // Every byte of a record is looked at without harm, whatever it is.
  const std::string record = event::histogram({1, 1}, "h", Histogram());
  for (std::size_t at = 0; at < record.size(); ++at) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string damaged = record;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        event::read_event(damaged);
      } catch (const DataLoss& error) {
        EXPECT_TRUE(contains(error.what(), "is not a valid event of TensorBoard")) << error.what();
      }
    }
  }
}

TEST(Histogram, PutsEveryFiniteValueIntoABucket) {
  Histogram histogram;
  const double most = std::numeric_limits<double>::max();
  for (const double value : {0.0, -0.0, 1e-12, -1e-12, 1e300, -1e300, most, -most, 1e-300}) histogram.add(value);
  histogram.add(std::numeric_limits<double>::quiet_NaN());
  histogram.add(-std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.count(), 9);
  EXPECT_EQ(histogram.not_finite(), 2);
  EXPECT_EQ(histogram.min(), -most);
  EXPECT_EQ(histogram.max(), most);
  const auto buckets = histogram.buckets();
  EXPECT_TRUE(std::ranges::is_sorted(buckets.limits));
  EXPECT_EQ(buckets.limits.back(), most);
  EXPECT_EQ(std::accumulate(buckets.counts.begin(), buckets.counts.end(), 0.0), 9);
  EXPECT_EQ(Histogram().buckets().counts, std::vector<double>{0});
}

TEST(Png, HoldsThePixels) {
  const std::array<std::uint8_t, 12> pixels{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (int channels = 1; channels <= 4; ++channels) {
    const int width = 12 / channels / (channels == 4 ? 3 : 2), height = 12 / channels / width;
    const std::string png = png_of({height, width, channels, pixels});
    const std::size_t data = png.find("IDAT") + 4;
    std::string rows(64, '\0');
    uLongf size = rows.size();
    ASSERT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                         reinterpret_cast<const Bytef*>(png.data() + data), png.size() - data - 16),
              Z_OK);
    std::string wanted;
    for (int y = 0; y < height; ++y) {
      wanted += '\0';
      wanted.append(reinterpret_cast<const char*>(pixels.data()) + y * width * channels, width * channels);
    }
    EXPECT_EQ(to_hex(rows.substr(0, size)), to_hex(wanted)) << channels;
  }
}

TEST(Png, RefusesWhatIsNotAnImage) {
  const std::array<std::uint8_t, 12> pixels{};
  const std::pair<Image, std::string> rows[] = {
      {{2, 2, 5, pixels}, "channels must be 1, 2, 3 or 4, got 5"},
      {{0, 2, 3, pixels}, "pixels, got 0 x 2"},
      {{2, -1, 3, pixels}, "pixels, got 2 x -1"},
      {{1 << 20, 1 << 20, 3, pixels}, "pixels, got 1048576 x 1048576"},
      {{2, 2, 2, pixels}, "an image of 2 x 2 x 2 needs 8 bytes, got 12"},
  };
  for (const auto& [image, text] : rows)
    expect_error([&drawn = image] { png_of(drawn); }, Code::InvalidArgument, errors::kBadOption, {text});
}

}  // namespace
}  // namespace lockstep::train
