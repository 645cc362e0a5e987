#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Sums over elements that come out the same however the elements are dealt to replicas: fixed blocks from a parameter's
// start, and block sums added up in a fixed tree.
namespace lockstep {

/// sums[b] = the sum of squares of block b of a contiguous 1-D tensor, in double; the last of `blocks` takes the rest.
void sum_squares_in_blocks(const at::Tensor& values, double* sums, std::size_t blocks);

/// Added in the one order of summation.
double tree_sum(const std::vector<double>& values);

}  // namespace lockstep
