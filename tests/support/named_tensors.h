#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/ordered_dict.h>

#include <map>
#include <string>

#include "tests/support/same_bits.h"

// Tensors by name, as in files.
namespace lockstep {

using Tensors = std::map<std::string, at::Tensor>;

inline Tensors copies_of_all(const torch::OrderedDict<std::string, at::Tensor>& named) {
  Tensors copies;
  for (const auto& item : named) copies.emplace(item.key(), item.value().detach().clone());
  return copies;
}

inline void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(same_bits(value, b.at(name))) << name << '\n' << value << '\n' << b.at(name);
  }
}

}  // namespace lockstep
