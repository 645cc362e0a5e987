#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/stage.h"
#include "lockstep/data/stages/row_stream.h"

namespace lockstep::data {

class PlaceMemory;

/// Rows of one pass of which some can be read a second time. What lies below the last stages that pass rows over
/// without computing them (`map`, `parse_example`) runs once for each row: its elements are remembered, and so are its
/// errors. Used by one thread at a time.
class RowMemory {
 public:
  RowMemory(const StagePtr& rows, const IterationContext& context);

  /// The rows from the first one on; to be asked for once.
  std::unique_ptr<RowStream> read();
  /// Rows [begin, end) will be remembered, as soon as they are passed; those before are forgotten.
  void keep(std::int64_t begin, std::int64_t end);
  /// The rows that are remembered; `first` is what the other stream has read of them.
  std::unique_ptr<RowStream> read_again(const RowStream& first) const;

 private:
  std::shared_ptr<PlaceMemory> memory_;
  StagePtr remembering_;  ///< the rows, with a memory in the middle
  StagePtr recalling_;    ///< the same above the memory
  IterationContext context_;
  std::vector<std::shared_ptr<void>> measured_as_;  ///< the rows' stages count for those they are made after
};

}  // namespace lockstep::data
