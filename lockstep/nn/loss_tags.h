#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

// Properties of a loss, recorded when it is computed and read when an optimizer gets it: inside run, on one replica's
// thread and until its next run.
namespace lockstep::detail {

enum class LossTag : unsigned {
  Averaged = 1,    ///< result of average_loss, whatever it was divided by
  Unsized = 2,     ///< divided by the rows of one call, counted by average_loss
  OfOneBatch = 4,  ///< covers every row of the batch given to run, divided by a size from the program: the batch's rows
  Scaled = 8,      ///< multiplied by a GradScaler
};

class LossTags {
 public:
  void add(LossTag tag) { bits_ |= static_cast<unsigned>(tag); }
  bool has(LossTag tag) const { return (bits_ & static_cast<unsigned>(tag)) != 0; }

 private:
  unsigned bits_ = 0;
};

/// Does nothing outside of run, or if no backward can start from `loss`.
void tag_loss(const at::Tensor& loss, LossTag tag);

/// The tags of exactly this loss: none if it was computed from a tagged one.
LossTags tags_of(const at::Tensor& loss);

/// Whether it is such a loss, or a sum containing one. A loss computed from one in another way, such as a division,
/// does not count.
bool is_tagged(const at::Tensor& loss, LossTag tag);

/// Whether it was computed from such a loss in any way.
bool contains_tagged(const at::Tensor& loss, LossTag tag);
bool contains_tagged(const torch::autograd::Node& node, LossTag tag);

}  // namespace lockstep::detail
