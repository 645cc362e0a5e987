#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Remembers the elements of the first complete pass, in memory or in a file, so that later ones do not compute them.
/// The pass that fills it reads every element, also those that a stage above leaves out: what is remembered must be
/// complete. A pass that is left early, or in which an element fails, remembers nothing.
class LOCKSTEP_EXPORT CacheStage final : public PassThroughStage {
 public:
  /// An empty path: in memory.
  CacheStage(StagePtr input, std::string path = "");

  std::string_view kind() const override { return "cache"; }
  std::string describe() const override;
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  RowSourcePtr row_source() const override;
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

  void save_lasting(Position& position) const override;
  void restore_lasting(Position& position) const override;

  const std::string& path() const { return path_; }

  /// What decides the random choices below a cache, and so its contents: the job's seed, and the place in the pipeline
  /// that filled it. The epoch does not: it is 0.
  struct Origin {
    std::uint64_t job_seed = 0;
    std::uint64_t path = 0;
    bool operator==(const Origin&) const = default;
  };
  /// What a pass has remembered. Does not change any more once it is there.
  struct Contents {
    std::vector<Element> elements;
    StagePtr rows;  ///< in place of `elements` where they fit into one batch: then they can be gathered
  };
  /// Shared by all iterations of this stage.
  struct Memory {
    std::mutex mutex;
    std::optional<Origin> origin;              ///< of the contents, or of those that a resumed position needs
    std::shared_ptr<const Contents> contents;  ///< null until it is complete
    bool warned = false;
  };

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::shared_ptr<const Contents> contents() const;
  /// FailedPrecondition if the contents are, or must be, of another origin.
  void settle(const Origin& origin) const;

  std::string path_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace lockstep::data
