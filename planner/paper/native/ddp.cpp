// What the reducer of DistributedDataParallel asks of a CUDA device besides memory (torch 2.13,
// torch/csrc/distributed/c10d/reducer.cpp): a timer, and pinned host memory for its map of used parameters.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_set>

#include "host_memory.h"
#include "pinned.h"

namespace paper {
namespace {

std::mutex bucket_mutex;
std::unordered_set<const void*> pinned;

void release_host(void* address) {
  {
    std::lock_guard<std::mutex> lock(bucket_mutex);
    pinned.erase(address);
  }
  record_host_give_up(address);
  c10::GetCPUAllocator()->raw_deleter()(address);
}

// Written down once, as pinned, and not by the CPU's allocator too.
void* take_host(size_t bytes) {
  NotOfTheProgram unheard;
  return c10::GetCPUAllocator()->raw_allocate(bytes);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = take_host(bytes);
    if (address != nullptr) {
      std::lock_guard<std::mutex> lock(bucket_mutex);
      pinned.insert(address);
    }
    record_host_take(address, bytes, /*pinned=*/true);
    return {address, address, &release_host, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_host; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

struct DeviceTimer final : c10d::Timer {
  explicit DeviceTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static PinnedAllocator instance;
  return &instance;
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(bucket_mutex);
  return pinned.count(address) > 0;
}

}  // namespace paper

namespace c10d {
using PaperTimer = paper::DeviceTimer;
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, c10::kCUDA, c10::REGISTRY_PREFERRED, PaperTimer)
}  // namespace c10d
