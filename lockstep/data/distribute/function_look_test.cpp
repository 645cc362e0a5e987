#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "lockstep/data/distribute/function_look.h"
#include "lockstep/data/files/files.h"

namespace lockstep::data {
namespace {

/// 1000 names, of which it is known how many were asked for.
class CountedNames final : public Stage {
 public:
  std::string_view kind() const override { return "counted_names"; }
  StageTraits traits() const override { return {.source = StageTraits::Source::List, .runs_functions = false}; }
  StagePtr with_inputs(std::vector<StagePtr>) const override { return shared_from_this(); }
  Cardinality cardinality() const override { return 1000; }
  ElementSpec element_spec() const override { return {{{ComponentSpec::bytes()}}}; }

  std::int64_t asked() const { return asked_; }

 protected:
  IteratorPtr make_iterator(const IterationContext&) const override { return std::make_unique<Names>(*this); }

 private:
  class Names final : public ElementIterator {
   public:
    explicit Names(const CountedNames& stage) : asked_(stage.asked_) {}
    bool next(Element& element) override {
      ++asked_;
      element = Element::of("part-" + std::to_string(next_));
      return next_++ < 1000;
    }

   private:
    std::atomic<std::int64_t>& asked_;
    std::int64_t next_ = 0;
  };

  mutable std::atomic<std::int64_t> asked_{0};
};

// To see whether a function opens files it is called with one element. Reading more could take as long as an epoch.
TEST(FunctionLook, ReadsNoMoreThanItsElement) {
  const auto source = std::make_shared<CountedNames>();
  const Dataset<std::string> names(source);
  const auto expect_look = [&](const auto& dataset, std::int64_t elements, const char* what) {
    const std::int64_t before = source->asked();
    EXPECT_TRUE(FunctionLook().at(*dataset.stage()).reads_files) << what;
    EXPECT_EQ(source->asked() - before, elements) << what;
  };
  const auto reader = [](const std::string& file) { return tfrecord_dataset(file); };
  expect_look(names.flat_map(reader), 1, "plain");
  expect_look(names.shuffle(500).flat_map(reader), 1, "shuffle");
  expect_look(names.shuffle(500).prefetch(100).repeat().interleave(reader), 1, "prefetch and repeat");
  const auto of_pair = [](const std::string& file, const at::Tensor&) { return tfrecord_dataset(file); };
  expect_look(zip(names.shuffle(500), range(1000)).flat_map(of_pair), 1, "zip");
  const auto of_batch = [](const Strings& files) { return tfrecord_dataset(files.values()); };
  expect_look(names.shuffle(500).batch(2).prefetch(2).flat_map(of_batch), 2, "batch");
}

}  // namespace
}  // namespace lockstep::data
