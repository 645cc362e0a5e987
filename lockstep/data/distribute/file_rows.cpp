#include "lockstep/data/distribute/file_rows.h"

#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/files/reader_stage.h"

namespace lockstep::data {
namespace {

// More than these are not looked at.
constexpr std::int64_t kFiles = 10'000;
constexpr std::uintmax_t kBytes = std::uintmax_t{64} << 20;

// Stages behind which there are as many rows as before.
const std::set<std::string, std::less<>> kKeepsRows = {"map",      "parallel_map",       "parse_example",
                                                       "prefetch", "with_options",       "cache",
                                                       "shuffle",  "assert_cardinality", "enumerate"};
// These, too, if there is one of them only: the rows of batches of batches are batches.
const std::set<std::string, std::less<>> kMakesBatches = {"padded_batch", "batch", "parallel_batch"};

const FileReaderStage* find_reader(const Stage& pipeline) {
  const Stage* stage = &pipeline;
  bool batched = false;
  while (true) {
    if (kMakesBatches.contains(stage->kind())) {
      if (batched) return nullptr;
      batched = true;
    } else if (!kKeepsRows.contains(stage->kind())) {
      break;
    }
    stage = stage->input().get();
  }
  return dynamic_cast<const FileReaderStage*>(stage);
}

const Stage& names_of(const FileReaderStage& reader) {
  const Stage* stage = reader.input().get();
  while (stage->kind() == "shuffle") stage = stage->input().get();
  const Stage* shared_out = input_of_required_shard(*stage);
  return shared_out ? *shared_out : *stage;
}

}  // namespace

std::optional<std::vector<std::int64_t>> rows_of_files(const Stage& pipeline) {
  const FileReaderStage* reader = find_reader(pipeline);
  if (reader == nullptr) return std::nullopt;
  const Stage& names = names_of(*reader);
  const Cardinality count = names.cardinality();
  if (first_running(names) || !count.is_known() || count.value() > kFiles) return std::nullopt;
  std::vector<std::int64_t> rows;
  std::uintmax_t bytes = kBytes;
  try {
    const IteratorPtr iterator = names.iterate({});
    for (Element name; iterator->next(name);) {
      const auto records = reader->count_records(name.bytes(0), bytes);
      if (!records) return std::nullopt;
      rows.push_back(*records);
    }
  } catch (const Error&) {
    return std::nullopt;  // whoever reads will see the error
  }
  return rows;
}

}  // namespace lockstep::data
