#include "lockstep/strategy/huge_blocks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// Stands in front of the tensor's data, so that the data's address is all that is needed to give it back.
struct alignas(64) HugeBlocks::Block {
  HugeBlocks* owner;
  std::size_t bytes;
  c10::DataPtr memory;  ///< this block's, itself included

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }

  struct Release {
    void operator()(Block* block) const { const c10::DataPtr memory = std::move(block->memory); }
  };
};

HugeBlocks::~HugeBlocks() {
  for (const auto& [bytes, block] : kept_) Block::Release()(block);
}

c10::DataPtr HugeBlocks::allocate(std::size_t bytes) {
  if (bytes < huge_bytes_) return plain_.allocate(bytes);
  Block* block = take_kept(bytes);
  if (block == nullptr) block = make(bytes);
  return {block->data(), block->data(), &keep, c10::Device(c10::DeviceType::CPU)};
}

HugeBlocks::Block* HugeBlocks::take_kept(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto fit = kept_.lower_bound(bytes);
  if (fit == kept_.end() || fit->first > bytes + bytes / 4) return nullptr;
  Block* const block = fit->second;
  kept_.erase(fit);
  kept_bytes_ -= block->bytes;
  used_bytes_ += block->bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

HugeBlocks::Block* HugeBlocks::make(std::size_t bytes) {
  make_room(bytes);
  c10::DataPtr memory = plain_.allocate(sizeof(Block) + bytes);
  void* const place = memory.get();
  Block* const block = new (place) Block{this, bytes, std::move(memory)};
  const std::lock_guard lock(mutex_);
  used_bytes_ += bytes;
  return block;
}

void HugeBlocks::make_room(std::size_t bytes) {
  std::vector<std::unique_ptr<Block, Block::Release>> released;  // after the lock: giving memory back takes long
  const std::lock_guard lock(mutex_);
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_ + bytes);
  while (!kept_.empty() && used_bytes_ + bytes + kept_bytes_ > 2 * most_used_bytes_) {
    const auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    released.emplace_back(largest->second);
    kept_.erase(largest);
  }
}

void HugeBlocks::keep(void* data) {
  Block* const block = Block::of(data);
  HugeBlocks& owner = *block->owner;
  const std::lock_guard lock(owner.mutex_);
  owner.kept_.emplace_hint(owner.kept_.lower_bound(block->bytes), block->bytes, block);
  owner.kept_bytes_ += block->bytes;
  owner.used_bytes_ -= block->bytes;
}

std::size_t HugeBlocks::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

namespace {
std::atomic<bool> keeps_results{false};
}

void keep_huge_results() { keeps_results = true; }

at::Tensor empty_result(const at::Tensor& like) {
  if (!keeps_results || like.nbytes() < HugeBlocks::kHugeBytes) return at::empty(like.sizes(), like.options());
  // Never deleted: tensors may be freed after main has returned.
  static auto& blocks = *new HugeBlocks(*c10::GetCPUAllocator());
  return at::Tensor(at::detail::empty_generic(like.sizes(), &blocks, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                              like.scalar_type(), std::nullopt));
}

}  // namespace lockstep
