#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Sums over elements with the same result whichever replica owns which element: fixed blocks from a parameter's start,
// and block sums added in a fixed tree.
namespace lockstep {

/// sums[b] = the sum of squares of block b of a contiguous 1-D tensor, in double; the last of `blocks` includes the
/// rest.
void sum_squares_in_blocks(const at::Tensor& values, double* sums, std::size_t blocks);

/// Adds in the one order of summation.
double tree_sum(const std::vector<double>& values);

}  // namespace lockstep
