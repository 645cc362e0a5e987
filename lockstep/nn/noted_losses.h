#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

// What is known of a loss where it is computed, and matters where an optimizer gets it: inside run, on one replica's
// thread and until its next run.
namespace lockstep::detail {

enum class LossNote : unsigned {
  Averaged = 1,  ///< by average_loss, whatever it was divided by
  Unsized = 2,   ///< divided by the rows of one call, which average_loss has counted
  OfOneBatch =
      4,  ///< of every row of the batch given to run, divided by a size that the program gave: the rows of the batch
  Scaled = 8,  ///< multiplied by a GradScaler
};

class LossNotes {
 public:
  void add(LossNote note) { bits_ |= static_cast<unsigned>(note); }
  bool has(LossNote note) const { return (bits_ & static_cast<unsigned>(note)) != 0; }

 private:
  unsigned bits_ = 0;
};

/// Nothing outside of run, or where no backward may start from `loss`.
void note_loss(const at::Tensor& loss, LossNote note);

/// Of this very loss: none, if it was computed from a noted one.
LossNotes notes_of(const at::Tensor& loss);

/// Whether it is such a loss, or a sum with one. A loss that was computed from one in another way, such as by a division,
/// is none.
bool is_noted(const at::Tensor& loss, LossNote note);

/// Whether it was computed from one in any way.
bool holds_noted(const at::Tensor& loss, LossNote note);
bool holds_noted(const torch::autograd::Node& node, LossNote note);

}  // namespace lockstep::detail
