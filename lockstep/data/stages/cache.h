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
  std::string identity() const override { return "cache"; }  // wherever it is kept
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;
  RowSourcePtr row_source() const override;
  std::unique_ptr<IndexIterator> make_index_iterator(const IterationContext& context) const override;

  void save_lasting(Position& position) const override;
  void restore_lasting(Position& position) const override;

  const std::string& path() const { return path_; }
  /// Where and how what is below is read by a pass that fills the cache: it holds what the first one would have.
  IterationContext first_pass(const IterationContext& context) const;

  /// What decides the random choices below a cache, and so its contents: the job's seed, and the place in the pipeline
  /// of the pass that came first. The epoch does not: it is 0.
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
    /// Decided by the first pass that starts and not by the one that is complete first: a pipeline may read the same
    /// cache at several places, and all of them see the same elements in every pass.
    std::optional<Origin> origin;
    /// There are contents of this origin, or a position was resumed that needs it.
    bool is_binding = false;
    std::weak_ptr<const Origin> under_way;     ///< held by passes that fill the cache
    std::shared_ptr<const Contents> contents;  ///< null until it is complete
    bool warned = false;
  };

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::shared_ptr<const Contents> contents() const;
  /// Makes `origin` the one that counts. FailedPrecondition if there is another one already that must not change.
  void settle(const Origin& origin, bool while_under_way) const;
  /// For a pass that computes elements: takes part in what is under way, or begins it.
  std::shared_ptr<const Origin> begin(const IterationContext& context) const;

  std::string path_;
  std::shared_ptr<Memory> memory_;
};

}  // namespace lockstep::data
