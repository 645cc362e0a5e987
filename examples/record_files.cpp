// Writes images to TFRecord files and reads them back in batches: interleaved, shuffled, parsed a batch at a time.

#include <lockstep/data/format/tfrecord.h>
#include <lockstep/lockstep.h>

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

using namespace lockstep::data;

struct Digits {
  at::Tensor image, label;
};

constexpr int kFiles = 4;
constexpr int kPerFile = 500;

void write_files(const std::string& folder) {
  for (int file = 0; file < kFiles; ++file) {
    TFRecordWriter writer(folder + "/train-" + std::to_string(file) + ".tfrecord");
    for (std::int64_t i = 0; i < kPerFile; ++i) {
      const std::vector<float> image(784, static_cast<float>(i % 10));
      writer.write(write_example({{"image", image}, {"label", std::vector<std::int64_t>{i % 10}}}));
    }
    writer.close();
  }
}

auto read_files(const std::string& pattern) {
  const FeatureSpec spec{{"image", FixedLenFeature{FeatureType::Float, {784}}},
                         {"label", FixedLenFeature{FeatureType::Int64, {}}}};
  auto records = list_files(pattern)
                     .interleave([](const std::string& file) { return tfrecord_dataset(file); }, {.parallel_calls = 2})
                     .shuffle(10'000)
                     .batch(256);
  return parse_example<Digits>(records, spec, {"image", "label"}).prefetch();
}

int main() {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("lockstep-records-" + std::to_string(getpid()))).string();
  std::filesystem::create_directories(folder);
  write_files(folder);
  std::int64_t rows = 0;
  bool all_fit = true;
  for (const auto& [image, label] : read_files(folder + "/train-*.tfrecord")) {
    rows += label.size(0);
    all_fit = all_fit && at::equal(image.mean(1), label.to(at::kFloat));
  }
  std::filesystem::remove_all(folder);
  std::printf("%ld rows from %d files, images and labels %s\n", static_cast<long>(rows), kFiles,
              all_fit ? "match" : "DO NOT MATCH");
  return all_fit && rows == kFiles * kPerFile ? 0 : 1;
}
