#include "graph_pools.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"

namespace paper {
namespace {

// As beginAllocateToPool (torch 2.13, c10/cuda/CUDACachingAllocator.cpp): while something is captured what is allocated
// on its stream, and while a graph is warmed up what its thread allocates.
struct OpenPool {
  int64_t pool;
  bool by_stream;
  int32_t stream;
  std::thread::id thread;
};

std::mutex pools_mutex;
std::vector<OpenPool> open_pools;
std::atomic<bool> any_open{false};

}  // namespace

int64_t pool_now() {
  if (!any_open) return 0;
  std::lock_guard<std::mutex> lock(pools_mutex);
  const auto found = std::find_if(open_pools.begin(), open_pools.end(), [](const OpenPool& each) {
    return each.by_stream ? each.stream == current_stream() : each.thread == std::this_thread::get_id();
  });
  return found == open_pools.end() ? 0 : found->pool;
}

}  // namespace paper

extern "C" {

// What is allocated from now on this stream (or, if not `by_stream`, by this thread) lies in the pool of that number.
void paper_open_pool(int64_t pool, int32_t by_stream) {
  std::lock_guard<std::mutex> lock(paper::pools_mutex);
  paper::open_pools.push_back({pool, by_stream != 0, paper::current_stream(), std::this_thread::get_id()});
  paper::any_open = true;
}

void paper_close_pool(int64_t pool) {
  std::lock_guard<std::mutex> lock(paper::pools_mutex);
  auto& open = paper::open_pools;
  open.erase(std::remove_if(open.begin(), open.end(), [pool](const auto& each) { return each.pool == pool; }), open.end());
  paper::any_open = !open.empty();
}

// Gives up the memory of a storage (a StorageImpl), which keeps its address; whether it was memory of the paper GPU.
int32_t paper_free_memory_of(void* storage) {
  auto& data = static_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  void* address = data.get();
  const auto deleter = paper::allocator()->raw_deleter();
  if (!data.compare_exchange_deleter(deleter, c10::detail::deleteNothing)) return 0;
  deleter(address);
  return 1;
}

// From now on whoever asks for the address of a storage, or of a tensor (their C++ objects), is told why there is none.
void paper_forbid_storage(void* storage, const char* why) {
  static_cast<c10::StorageImpl*>(storage)->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(why));
}
}
