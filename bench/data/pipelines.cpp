#include "pipelines.h"

#include <ATen/ops/scalar_tensor.h>

#include "lockstep/base/text.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/example.h"
#include "lockstep/data/format/tfrecord.h"
#include "lockstep/values/const_data.h"

namespace lockstep::bench {
namespace {

namespace data = lockstep::data;

constexpr int kFiles = 4;

template <class Dataset>
std::function<std::int64_t()> reader_of(Dataset dataset) {
  return [dataset] {
    std::int64_t rows = 0;
    for (const Images& batch : dataset) rows += batch.image.size(0);
    return rows;
  };
}

std::vector<std::string> write_records(const Images& images, const std::string& folder) {
  std::vector<std::string> files;
  const auto* pixels = const_data<float>(images.image);
  const auto* labels = const_data<std::int64_t>(images.label);
  for (int f = 0; f < kFiles; ++f) {
    files.push_back(str(folder, "/part-", f, ".tfrecord"));
    data::TFRecordWriter writer(files.back());
    for (std::int64_t i = f; i < images.image.size(0); i += kFiles) {
      const data::Example example{{"image", std::vector<float>(pixels + i * 784, pixels + (i + 1) * 784)},
                                  {"label", std::vector<std::int64_t>{labels[i]}}};
      writer.write(data::write_example(example));
    }
    writer.close();
  }
  return files;
}

}  // namespace

std::vector<Pipeline> lockstep_pipelines(const Images& images, const std::string& folder) {
  const auto memory = data::from_tensor_slices(images).shuffle(10'000);
  // The function owns its row and may write into it. LibTorch converts every number to a tensor, so create these
  // tensors once.
  const auto mapped = memory.map(
      [scale = at::scalar_tensor(255.0f), shift = at::scalar_tensor(0.5f)](Images row) {
        row.image.div_(scale).sub_(shift);
        return row;
      },
      {.parallel_calls = 2});
  const data::FeatureSpec spec{{"image", data::FixedLenFeature{data::FeatureType::Float, {784}}},
                               {"label", data::FixedLenFeature{data::FeatureType::Int64, {}}}};
  const auto records = data::from_tensor_slices(write_records(images, folder))
                           .interleave([](const std::string& file) { return data::tfrecord_dataset(file); },
                                       {.cycle_length = kFiles, .parallel_calls = 2})
                           .shuffle(10'000)
                           .batch(256);
  return {
      {"lockstep", "memory", reader_of(memory.batch(256).prefetch())},
      {"lockstep", "mapped", reader_of(mapped.batch(256).prefetch())},
      {"lockstep", "records", reader_of(data::parse_example<Images>(records, spec, {"image", "label"}).prefetch())}};
}

}  // namespace lockstep::bench
