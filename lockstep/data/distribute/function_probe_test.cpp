#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "lockstep/data/distribute/function_probe.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/iterators.h"

namespace lockstep::data {
namespace {

/// 1000 names; counts in `asked` how many were requested.
StagePtr make_counted_names(std::atomic<std::int64_t>& asked) {
  return make_stage({}, {.kind = "counted_names",
                         .traits = {.source = StageTraits::Source::List, .runs_functions = false},
                         .cardinality = [](const Stage&) { return Cardinality(1000); },
                         .spec = [](const Stage&) { return ElementSpec{{{ComponentSpec::bytes()}}}; },
                         .iterate =
                             [&asked](const Stage&, const IterationContext&) {
                               return make_function_iterator([&asked, next = 0](Element& element) mutable {
                                 ++asked;
                                 element = Element::of("part-" + std::to_string(next));
                                 return next++ < 1000;
                               });
                             }});
}

// To find out whether a function opens files it is called with one element. Reading more could take as long as an
// epoch.
TEST(FunctionProbe, ReadsNoMoreThanItsElement) {
  std::atomic<std::int64_t> asked{0};
  const Dataset<std::string> names(make_counted_names(asked));
  const auto expect_look = [&](const auto& dataset, std::int64_t elements, const char* what) {
    const std::int64_t before = asked;
    EXPECT_TRUE(FunctionProbe().at(*dataset.stage()).reads_files) << what;
    EXPECT_EQ(asked - before, elements) << what;
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
