#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstddef>
#include <map>
#include <mutex>

namespace lockstep {

/// Keeps the memory of huge tensors for the next ones of about their size; smaller requests go to `plain`. A thread's
/// blocks come back to it, wherever they are freed: replicas do the same step after step, so each finds its memory warm
/// and none waits for another. Of what a thread has taken it never keeps more than twice what was in use at most.
///
/// malloc can be told to keep what is freed (base/keep_memory.h), with an exception: threads other than the first have
/// heaps of 64 MB, which are unmapped when they are empty, and a larger block is mapped and unmapped each time. Its
/// page faults cost several times what computing it costs.
///
/// Any thread may call it.
class HugeBlocks final : public c10::Allocator {
 public:
  /// As much as a huge page holds: blocks lie on huge pages where the system has them to give.
  static constexpr std::size_t kHugeBytes = 2 << 20;
  static constexpr std::size_t kShares = 64;

  explicit HugeBlocks(c10::Allocator& plain, std::size_t huge_bytes = kHugeBytes);
  ~HugeBlocks() override;  ///< after all its tensors
  HugeBlocks(const HugeBlocks&) = delete;
  HugeBlocks& operator=(const HugeBlocks&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  std::size_t kept_bytes() const;
  void release_kept();  ///< gives what no tensor uses back to the system

 private:
  struct Block;

  /// What belongs to one thread; to several where there are more threads than shares.
  struct Share {
    std::mutex mutex;
    std::multimap<std::size_t, Block*> kept;  ///< by size, the latest first
    std::size_t kept_bytes = 0;
    std::size_t used_bytes = 0;
    std::size_t most_used_bytes = 0;
    std::size_t number = 0;

    Block* take_kept(std::size_t bytes);
    void make_room(std::size_t bytes);
  };

  Share& share_of_this_thread();
  static Block* make(Share& share, std::size_t bytes);  ///< null if the system has none left
  static void keep(void* data);
  static void keep_or_free(void* data);

  c10::Allocator& plain_;
  const std::size_t huge_bytes_;
  mutable std::array<Share, kShares> shares_;
};

/// From now on LibTorch's CPU tensors take their memory from HugeBlocks, unless the program has brought an allocator of
/// its own.
void keep_huge_blocks();

}  // namespace lockstep
