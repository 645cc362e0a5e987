#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/data/cardinality.h"
#include "lockstep/data/stage.h"

// How many rows the batches of a pipeline have, as far as plans can tell without computing any.
namespace lockstep::data {

/// Batches of one size that follow each other.
struct BatchRun {
  std::int64_t rows = 0;     ///< of each batch
  std::int64_t batches = 0;  ///< kEndless: without end
};

/// All batches of a pass.
struct BatchTally {
  std::vector<BatchRun> runs;
  std::int64_t times = 1;  ///< the runs from the first to the last, so often; kEndless: without end
  bool in_order = true;    ///< false: behind a shuffle nobody knows which batch comes when

  bool is_endless() const;
  Cardinality rows() const;
  Cardinality batches() const;
};

/// The rows of files, by the stage that reads them.
using FileRows = std::map<const Stage*, std::vector<std::int64_t>>;

/// Which of the workers is meant where a plan has put shards into the pipeline, and what is known about files.
struct TallyFor {
  int worker = 0;
  const FileRows* files = nullptr;  ///< null: nobody has counted
};

/// None where only reading tells. Elements that are single values count as one row each.
LOCKSTEP_EXPORT std::optional<BatchTally> tally_batches(const Stage& batches, const TallyFor& what);

/// How many elements a pass has, where that is certain or promised; not where there may be nothing to repeat.
LOCKSTEP_EXPORT Cardinality count_elements(const Stage& elements, const TallyFor& what);

/// The number of rows of every batch, if the spec says it.
std::optional<std::int64_t> rows_by_spec(const ElementSpec& spec);

}  // namespace lockstep::data
