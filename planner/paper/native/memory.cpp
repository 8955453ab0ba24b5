#include "memory.h"

#include <sys/mman.h>

#include <mutex>
#include <unordered_map>

#include "host_values.h"
#include "trace.h"

namespace paper {
namespace {

// Reserved, never committed: a kernel that touches it by mistake faults at once instead of computing with nothing.
constexpr size_t kRegionBytes = size_t{1} << 46;
constexpr size_t kAlignment = 512;

struct Region {
  char* base = nullptr;
  size_t next = 0;

  char* take(size_t bytes) {
    if (base == nullptr) {
      void* mapped = mmap(nullptr, kRegionBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(mapped != MAP_FAILED, "the paper GPU could not reserve its address space");
      base = static_cast<char*>(mapped);
    }
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    TORCH_CHECK(next + rounded <= kRegionBytes, "the paper GPU has used up its address space");
    char* address = base + next;
    next += rounded;
    return address;
  }
};

std::mutex mutex;
Region region;
std::unordered_map<const void*, int64_t> blocks;

void release(void* address) {
  forget(address);
  int64_t block = -1;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = blocks.find(address);
    if (found == blocks.end()) return;
    block = found->second;
    blocks.erase(found);
    if (blocks.empty()) region.next = 0;  // nothing is in use: begin again at the start
  }
  record_free(block);
}

struct PaperAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CUDA, 0);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    const int64_t block = record_alloc(bytes, current_stream());
    void* address = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex);
      address = region.take(bytes);
      blocks[address] = block;
    }
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

}  // namespace

c10::Allocator* allocator() {
  static PaperAllocator instance;
  return &instance;
}

void install_allocator() { c10::SetAllocator(c10::DeviceType::CUDA, allocator(), /*priority=*/255); }

int64_t block_at(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = blocks.find(address);
  return found == blocks.end() ? -1 : found->second;
}

}  // namespace paper

extern "C" int64_t paper_block_at(const void* address) { return paper::block_at(address); }
