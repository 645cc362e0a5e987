#include "lockstep/data/distribute/file_rows.h"

#include "lockstep/base/error.h"
#include "lockstep/data/distribute/describe.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/files/reader_stage.h"

namespace lockstep::data {
namespace {

// More than these are not looked at.
constexpr std::int64_t kFiles = 10'000;
constexpr std::uintmax_t kBytes = std::uintmax_t{64} << 20;

const Stage& names_of(const FileReaderStage& reader) {
  const Stage* stage = reader.input().get();
  while (stage->kind() == "shuffle") stage = stage->input().get();
  const Stage* shared_out = input_of_required_shard(*stage);
  return shared_out ? *shared_out : *stage;
}

/// As if every file had no rows: to see whether knowing them helps.
void pretend(const Stage& stage, FileRows& all) {
  for (const StagePtr& input : stage.inputs()) pretend(*input, all);
  if (dynamic_cast<const FileReaderStage*>(&stage)) all.emplace(&stage, std::vector<std::int64_t>());
}

void add_rows(const Stage& stage, std::uintmax_t& bytes, FileRows& all) {
  for (const StagePtr& input : stage.inputs()) add_rows(*input, bytes, all);
  const auto* reader = dynamic_cast<const FileReaderStage*>(&stage);
  if (reader == nullptr || all.contains(reader)) return;
  const Stage& names = names_of(*reader);
  const Cardinality count = names.cardinality();
  if (first_running(names) || !count.is_known() || count.value() > kFiles) return;
  std::vector<std::int64_t> rows;
  try {
    const IteratorPtr iterator = names.iterate({});
    for (Element name; iterator->next(name);) {
      const auto records = reader->count_records(name.bytes(0), bytes);
      if (!records) return;
      rows.push_back(*records);
    }
  } catch (const Error&) {
    return;  // whoever reads will see the error
  }
  all.emplace(reader, std::move(rows));
}

}  // namespace

FileRows rows_of_files(const Stage& pipeline) {
  FileRows all;
  FileRows pretended;
  pretend(pipeline, pretended);
  if (!tally_batches(pipeline, {.files = &pretended})) return all;
  std::uintmax_t bytes = kBytes;
  add_rows(pipeline, bytes, all);
  return all;
}

}  // namespace lockstep::data
