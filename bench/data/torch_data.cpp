#include <torch/data.h>

#include "pipelines.h"

namespace lockstep::bench {
namespace {

class InMemory : public torch::data::datasets::Dataset<InMemory> {
 public:
  explicit InMemory(Images images) : images_(std::move(images)) {}
  torch::data::Example<> get(std::size_t i) override {
    const auto index = static_cast<std::int64_t>(i);
    return {images_.image[index], images_.label[index]};
  }
  std::optional<std::size_t> size() const override { return images_.image.size(0); }

 private:
  Images images_;
};

template <class Dataset>
std::function<std::int64_t()> reader_of(Dataset dataset) {
  return [dataset] {
    auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        dataset, torch::data::DataLoaderOptions().batch_size(256).workers(2));
    std::int64_t rows = 0;
    for (auto& batch : *loader) rows += batch.data.size(0);
    return rows;
  };
}

}  // namespace

std::vector<Pipeline> torch_data_pipelines(const Images& images) {
  using torch::data::transforms::Lambda;
  using torch::data::transforms::Stack;
  using Example = torch::data::Example<>;
  return {{"torch::data", "memory", reader_of(InMemory(images).map(Stack<>()))},
          {"torch::data", "mapped",
           reader_of(InMemory(images)
                         .map(Lambda<Example>([](Example row) { return Example(row.data / 255.0 - 0.5, row.target); }))
                         .map(Stack<>()))}};
}

}  // namespace lockstep::bench
