#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <map>
#include <mutex>

namespace lockstep {

/// Keeps the memory of huge tensors for the next ones of about their size; smaller requests go to `plain`. It never
/// holds more than twice what was in use at most.
///
/// malloc can be told to keep what is freed (base/keep_memory.h), with an exception: threads other than the first have
/// heaps of 64 MB, and a larger block is mapped and unmapped each time. Its page faults cost several times what summing
/// it costs.
///
/// Any thread may call it.
class HugeBlocks final : public c10::Allocator {
 public:
  static constexpr std::size_t kHugeBytes = 32 << 20;

  explicit HugeBlocks(c10::Allocator& plain, std::size_t huge_bytes = kHugeBytes)
      : plain_(plain), huge_bytes_(huge_bytes) {}
  ~HugeBlocks() override;  ///< after all its tensors
  HugeBlocks(const HugeBlocks&) = delete;
  HugeBlocks& operator=(const HugeBlocks&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  std::size_t kept_bytes() const;

 private:
  struct Block;

  Block* take_kept(std::size_t bytes);
  Block* make(std::size_t bytes);
  void make_room(std::size_t bytes);
  static void keep(void* data);

  c10::Allocator& plain_;
  const std::size_t huge_bytes_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Block*> kept_;  ///< by size, the latest first
  std::size_t kept_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t most_used_bytes_ = 0;
};

/// From now on results of collectives take their memory from HugeBlocks; LibTorch's own allocator stays as it is.
void keep_huge_results();

/// An uninitialised contiguous CPU tensor for the result of a collective, of the form of `like`.
at::Tensor empty_result(const at::Tensor& like);

}  // namespace lockstep
