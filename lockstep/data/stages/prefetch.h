#pragma once

#include "lockstep/data/stage.h"

namespace lockstep::data {

/// Reads up to `buffer_size` elements ahead on a thread of its own; 0 reads none, -1 two.
class LOCKSTEP_EXPORT PrefetchStage final : public PassThroughStage {
 public:
  PrefetchStage(StagePtr input, std::int64_t buffer_size);

  std::string_view kind() const override { return "prefetch"; }
  std::string describe() const override;
  std::string identity() const override { return ""; }
  StagePtr with_inputs(std::vector<StagePtr> inputs) const override;

  std::int64_t buffer_size() const { return buffer_size_; }

 protected:
  IteratorPtr make_iterator(const IterationContext& context) const override;

 private:
  std::int64_t buffer_size_;
};

/// Reads ahead on a thread, several small elements at a time: a hand-over costs more than a small element.
IteratorPtr read_ahead_in_chunks(IteratorPtr input);

}  // namespace lockstep::data
