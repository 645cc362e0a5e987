#pragma once

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
  explicit HugeBlocks(c10::Allocator& plain, std::size_t huge_bytes = 32 << 20)
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

/// Puts HugeBlocks in front of LibTorch's CPU allocator, once, for the process.
void keep_huge_blocks();

}  // namespace lockstep
