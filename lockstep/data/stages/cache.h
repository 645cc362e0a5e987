#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Remembers the elements of the first complete pass, in memory or in a file, so that later ones do not compute them.
/// A pass that is left early remembers nothing.
class LOCKSTEP_EXPORT CacheStage final : public PassThroughStage {
 public:
  /// An empty path: in memory.
  CacheStage(StagePtr input, std::string path = "");

  std::string_view kind() const override { return "cache"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  RowSourcePtr row_source() const override;
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

  /// What a pass has remembered; shared by all iterations of this stage.
  struct Memory {
    std::mutex mutex;
    bool complete = false;
    std::vector<Element> elements;
    StagePtr rows;  // in place of `elements` where they fit into one batch: then they can be gathered
  };

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  StagePtr rows_in_memory() const;

  std::string path_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace lockstep::data
