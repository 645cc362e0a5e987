#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/compat.h"
#include "tests/golden/program.h"
#include "tests/golden_input/dataset_builder.h"
#include "tests/golden_input/values.h"
#include "tests/support/golden_counts.h"

// The iterators of TensorFlow 1: make_dataset_iterator and make_input_fn_iterator.
namespace lockstep::golden_compat {
namespace {

using golden::Case;
using golden::json;
namespace v1 = compat::v1;

v1::MirroredStrategy& strategy_of(int replicas) {
  static std::map<int, std::unique_ptr<v1::MirroredStrategy>> strategies;
  auto& strategy = strategies[replicas];
  if (!strategy) strategy = std::make_unique<v1::MirroredStrategy>(cpus(replicas));
  return *strategy;
}

template <class T>
json write_step(const PerReplica<T>& step) {
  json values = json::array();
  for (const T& value : step) {
    data::Element element;
    data::encode<T>(value, element);
    values.push_back(golden_input::write(element));
  }
  return values;
}

template <class T>
json epochs_of(v1::InputIterator<T> iterator, const Case& given) {
  json result{{"initialize", json::array()}, {"epochs", json::array()}};
  for (int epoch = 0; epoch < given["epochs"].get<int>(); ++epoch) {
    iterator.initialize();
    result["initialize"].push_back(nullptr);  // it returns nothing
    json steps = json::array();
    try {
      for (;;) steps.push_back(write_step(iterator.get_next()));
    } catch (const OutOfRange&) {
    }
    result["epochs"].push_back(std::move(steps));
  }
  return result;
}

template <class T>
json run_with_elements(const Case& given, const data::StagePtr& stage) {
  const v1::MirroredStrategy& strategy = strategy_of(given.replicas_per_worker());
  const data::Dataset<T> dataset(stage);
  if (given["what"] == "make_dataset_iterator") return epochs_of(strategy.make_dataset_iterator(dataset), given);
  return epochs_of(strategy.make_input_fn_iterator([&](const v1::InputContext&) { return dataset; }), given);
}

json run_with_dataset(const Case& given) {
  given.allow_inputs({"what", "replicas_per_worker", "dataset", "epochs"});
  const data::StagePtr dataset = golden_input::build_dataset(given["dataset"]);
  const auto spec = dataset->element_spec();
  if (spec.components && spec.components->size() == 2)
    return run_with_elements<std::pair<at::Tensor, at::Tensor>>(given, dataset);
  if (spec.components && spec.components->size() > 2) golden::unknown_value("dataset", given["dataset"]);
  return run_with_elements<at::Tensor>(given, dataset);
}

json run_with_callable(const Case& given) {
  given.allow_inputs({"what", "replicas_per_worker", "calls"});
  const auto make_tens = [](const v1::InputContext&) { return [k = 0]() mutable { return k += 10; }; };
  auto iterator = strategy_of(given.replicas_per_worker()).make_input_fn_iterator(make_tens);
  iterator.initialize();
  json result{{"initialize", nullptr}, {"steps", json::array()}};
  for (int i = 0; i < given["calls"].get<int>(); ++i) result["steps"].push_back(write_step(iterator.get_next()));
  return result;
}

json run_without_input(const Case& given) {
  given.allow_inputs({"what", "replicas_per_worker"});
  const auto nothing = [](const v1::InputContext&) { return std::function<int()>(); };
  strategy_of(given.replicas_per_worker()).make_input_fn_iterator(nothing);
  return {};
}

json run_case(const Case& given) {
  const std::string what = given["what"];
  if (what == "make_dataset_iterator" || what == "make_input_fn_iterator") return run_with_dataset(given);
  if (what == "make_input_fn_iterator_callable") return run_with_callable(given);
  if (what == "make_input_fn_iterator_bad") return run_without_input(given);
  golden::unknown_value("what", what);
}

class Iterators final : public golden::GoldenSet {
 public:
  std::string file() const override { return "input.json"; }
  golden::Program program() const override { return golden::Program::Compat; }

  void check(const Case& given) override {
    const json got = golden_input::outcome_of([&] { return run_case(given); });
    const std::string text = got.value("text", "");
    const std::string found = golden_input::difference(given.expect(), got);
    EXPECT_TRUE(found.empty()) << found << '\n' << text;
    if (given.expect().contains("fragment")) {
      EXPECT_NE(text.find(given.expect()["fragment"].get<std::string>()), text.npos) << text;
    }
  }

  void count(const Case& given) override {
    counts_.add(given, [](const Case&) { return std::optional<golden_input::Exception>(); });
  }
  void check_counts() const override { counts_.check(); }
  void print_counts(std::ostream& out) const override { counts_.print(out, "TensorFlow 1's iterators"); }

 private:
  golden::GoldenCounts counts_;
};

}  // namespace
}  // namespace lockstep::golden_compat

int main(int argc, char** argv) {
  lockstep::golden_compat::Iterators iterators;
  return lockstep::golden::run_golden_set(argc, argv, iterators);
}
