#include "lockstep/strategy/huge_blocks.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <unordered_set>
#include <vector>

#include "lockstep/base/sanitizers.h"

namespace lockstep {

struct MappedMemory {
  char* begin;
  std::size_t bytes;
};

namespace {

constexpr std::size_t kHugePage = 2 << 20;
/// Arrays at the same place of their pages compete for the same lines of the cache. Sums read one of each replica.
constexpr std::size_t kColors = 16, kColorBytes = 256;

MappedMemory map_memory(std::size_t bytes) {
  const std::size_t spare = bytes + kHugePage;
  void* const found = mmap(nullptr, spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return {nullptr, 0};
  const auto first = reinterpret_cast<std::uintptr_t>(found);
  const std::size_t before = (kHugePage - first % kHugePage) % kHugePage;
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t used = (bytes + page - 1) / page * page;
  auto* const begin = static_cast<char*>(found) + before;
  if (before > 0) munmap(found, before);
  if (before + used < spare) munmap(begin + used, spare - before - used);
  madvise(begin, used, MADV_HUGEPAGE);  // a wish: where it is not granted everything works, a little slower
  return {begin, used};
}

/// Deals out shares to threads, to a new one what the last one left: strategies come and go, and their threads with
/// them.
class Places {
 public:
  static std::size_t of_this_thread() {
    // What frees or takes memory while the thread ends still finds a number; who else has it does not matter.
    thread_local std::size_t number = kNone;
    if (number == kNone) {
      thread_local const Leaving at_the_end{number = all().take()};
    }
    return number;
  }

 private:
  static constexpr std::size_t kNone = HugeBlocks::kShares;

  struct Leaving {
    std::size_t number;
    ~Leaving() { all().leave(number); }
  };

  static Places& all() {
    static auto& places = *new Places;  // threads may end after main has returned
    return places;
  }

  std::size_t take() {
    const std::lock_guard lock(mutex_);
    const auto emptiest = std::min_element(threads_.begin(), threads_.end());
    ++*emptiest;
    return static_cast<std::size_t>(emptiest - threads_.begin());
  }
  void leave(std::size_t number) {
    const std::lock_guard lock(mutex_);
    --threads_[number];
  }

  std::mutex mutex_;
  std::array<int, HugeBlocks::kShares> threads_{};
};

/// Where the data of all blocks begins. Tells them from other memory of which nothing but the address is known; asked
/// when the system is asked for memory anyway, so its lock costs nothing.
class MappedData {
 public:
  static MappedData& all() {
    static auto& places = *new MappedData;  // tensors may be freed after main has returned
    return places;
  }

  void add(void* data) {
    const std::lock_guard lock(mutex_);
    places_.insert(data);
  }
  void remove(void* data) {
    const std::lock_guard lock(mutex_);
    places_.erase(data);
  }
  bool has(void* data) {
    const std::lock_guard lock(mutex_);
    return places_.contains(data);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<void*> places_;
};

}  // namespace

/// Stands in front of the tensor's data, so that the data's address is all that is needed to give it back.
struct alignas(64) HugeBlocks::Block {
  Share* owner;
  std::size_t bytes;
  MappedMemory mapping;

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }

  struct Release {
    void operator()(Block* block) const {
      MappedData::all().remove(block->data());  // first: the next mapping may get this address
      munmap(block->mapping.begin, block->mapping.bytes);
    }
  };
};

HugeBlocks::HugeBlocks(c10::Allocator& plain, std::size_t huge_bytes) : plain_(plain), huge_bytes_(huge_bytes) {
  for (std::size_t i = 0; i < shares_.size(); ++i) shares_[i].number = i;
}

HugeBlocks::~HugeBlocks() { release_kept(); }

void HugeBlocks::release_kept() {
  for (Share& share : shares_) {
    const std::lock_guard lock(share.mutex);
    for (const auto& [bytes, block] : share.kept) Block::Release()(block);
    share.kept.clear();
    share.kept_bytes = 0;
  }
}

HugeBlocks::Share& HugeBlocks::share_of_this_thread() { return shares_[Places::of_this_thread()]; }

c10::DataPtr HugeBlocks::allocate(std::size_t bytes) {
  if (bytes < huge_bytes_) return plain_.allocate(bytes);
  Share& share = share_of_this_thread();
  Block* block = share.take_kept(bytes);
  if (block == nullptr) block = make(share, bytes);
  if (block == nullptr) {
    release_kept();  // all threads': better slow than not at all
    block = make(share, bytes);
  }
  if (block == nullptr) return plain_.allocate(bytes);  // which has a way to say no
  return {block->data(), block->data(), &keep, c10::Device(c10::DeviceType::CPU)};
}

HugeBlocks::Block* HugeBlocks::Share::take_kept(std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto fit = kept.lower_bound(bytes);
  if (fit == kept.end() || fit->first > bytes + bytes / 4) return nullptr;
  Block* const block = fit->second;
  kept.erase(fit);
  kept_bytes -= block->bytes;
  used_bytes += block->bytes;
  most_used_bytes = std::max(most_used_bytes, used_bytes);
  return block;
}

HugeBlocks::Block* HugeBlocks::make(Share& share, std::size_t bytes) {
  share.make_room(bytes);
  const std::size_t color = share.number % kColors * kColorBytes;
  const MappedMemory mapping = map_memory(color + sizeof(Block) + bytes);
  if (mapping.begin == nullptr) return nullptr;
  auto* const block = new (mapping.begin + color) Block{&share, bytes, mapping};
  MappedData::all().add(block->data());
  const std::lock_guard lock(share.mutex);
  share.used_bytes += bytes;
  share.most_used_bytes = std::max(share.most_used_bytes, share.used_bytes);
  return block;
}

void HugeBlocks::Share::make_room(std::size_t bytes) {
  std::vector<std::unique_ptr<Block, Block::Release>> released;  // after the lock: giving memory back takes long
  const std::lock_guard lock(mutex);
  // Not noted yet: the system may refuse, and what was never in use must not raise the bound.
  const std::size_t most_then = std::max(most_used_bytes, used_bytes + bytes);
  while (!kept.empty() && used_bytes + bytes + kept_bytes > 2 * most_then) {
    const auto largest = std::prev(kept.end());
    kept_bytes -= largest->first;
    released.emplace_back(largest->second);
    kept.erase(largest);
  }
}

void HugeBlocks::keep(void* data) {
  Block* const block = Block::of(data);
  Share& owner = *block->owner;
  const std::lock_guard lock(owner.mutex);
  owner.kept.emplace_hint(owner.kept.lower_bound(block->bytes), block->bytes, block);
  owner.kept_bytes += block->bytes;
  owner.used_bytes -= block->bytes;
}

/// For memory of which nothing but the address is known (raw_allocate).
void HugeBlocks::keep_or_free(void* data) {
  if (MappedData::all().has(data)) return keep(data);
  c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

c10::DeleterFnPtr HugeBlocks::raw_deleter() const { return &keep_or_free; }

std::size_t HugeBlocks::kept_bytes() const {
  std::size_t all = 0;
  for (Share& share : shares_) {
    const std::lock_guard lock(share.mutex);
    all += share.kept_bytes;
  }
  return all;
}

void keep_huge_blocks() {
#if !defined(LOCKSTEP_ADDRESS_SANITIZER)  // it would not see tensors that are used after they are freed
  // Never deleted: tensors may be freed after main has returned.
  static auto& blocks = *new HugeBlocks(*c10::GetDefaultCPUAllocator());
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&blocks);
#endif
}

}  // namespace lockstep
