#include "lockstep/comm/nccl/sum_schedule.h"

namespace lockstep::nccl {
namespace {

using engine::Shard;
using engine::SumPiece;
using engine::SumPlan;

/// Arrays are aligned for vector loads.
constexpr std::size_t kAlignment = 64;

class Scheduler {
 public:
  Scheduler(const SumPlan& plan, int rank, const std::vector<Shard>& shards, Result result)
      : plan_(plan), rank_(rank), shards_(shards), mine_(shards[static_cast<std::size_t>(rank)]), result_(result) {}

  SumSchedule make() {
    for (int piece = 0; piece < static_cast<int>(plan_.pieces.size()); ++piece) place_piece(piece);
    add_up();
    if (result_ == Result::Everywhere) share();
    return std::move(schedule_);
  }

 private:
  Part take_room(std::size_t elements) {
    const Part part{Part::Room, 0, schedule_.room};
    schedule_.room += (elements + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  void place_piece(int index) {
    const SumPiece& piece = plan_.pieces[static_cast<std::size_t>(index)];
    if (piece.worker != rank_) {
      values_.push_back(take_room(mine_.size()));
      add(schedule_.receives, piece.worker, values_.back(), mine_.size());
      return;
    }
    const Part whole = sum_of(piece);
    for (int peer = 0; peer < static_cast<int>(shards_.size()); ++peer) {
      const Shard& theirs = shards_[static_cast<std::size_t>(peer)];
      if (peer != rank_) add(schedule_.sends, peer, whole.from(theirs.begin), theirs.size());
    }
    values_.push_back(whole.from(mine_.begin));
  }

  /// NCCL sends from the first replica's GPU: its own array, or a sum computed there, for the owners of all shards.
  Part sum_of(const SumPiece& piece) {
    const int first = piece.ids.lo - plan_.pieces[static_cast<std::size_t>(first_of_mine())].ids.lo;
    const int count = piece.ids.hi - piece.ids.lo;
    if (count == 1 && first == 0) return {Part::Input, first, 0};
    const std::size_t elements = shards_.back().end;
    Addition addition{.inputs = {}, .into = take_room(elements), .elements = elements, .is_last = false};
    for (int k = first; k < first + count; ++k) addition.inputs.push_back({Part::Input, k, 0});
    if (elements > 0) schedule_.own.push_back(addition);
    return addition.into;
  }

  int first_of_mine() const { return plan_.first_piece[static_cast<std::size_t>(rank_)]; }

  Part finished() const { return {Part::Output, 0, result_ == Result::Everywhere ? mine_.begin : 0}; }

  void add_up() {
    if (mine_.size() == 0) return;
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const bool is_last = i + 1 == plan_.steps.size();
      Addition addition{.inputs = {},
                        .into = is_last ? finished() : take_room(mine_.size()),
                        .elements = mine_.size(),
                        .is_last = is_last};
      for (const int value : plan_.steps[i]) addition.inputs.push_back(values_[static_cast<std::size_t>(value)]);
      values_.push_back(addition.into);
      schedule_.additions.push_back(std::move(addition));
    }
  }

  void share() {
    for (int peer = 0; peer < static_cast<int>(shards_.size()); ++peer) {
      if (peer == rank_) continue;
      const Shard& theirs = shards_[static_cast<std::size_t>(peer)];
      add(schedule_.shares, peer, finished(), mine_.size());
      add(schedule_.collects, peer, {Part::Output, 0, theirs.begin}, theirs.size());
    }
  }

  static void add(std::vector<Transfer>& transfers, int peer, const Part& part, std::size_t elements) {
    if (elements > 0) transfers.push_back({peer, part, elements});
  }

  const SumPlan& plan_;
  const int rank_;
  const std::vector<Shard>& shards_;
  const Shard mine_;
  const Result result_;
  std::vector<Part> values_;  ///< values of the plan, for this worker's shard
  SumSchedule schedule_;
};

}  // namespace

SumSchedule schedule_sum(const SumPlan& plan, int rank, const std::vector<Shard>& shards, Result result) {
  return Scheduler(plan, rank, shards, result).make();
}

}  // namespace lockstep::nccl
