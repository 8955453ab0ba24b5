// The memory that torch's own CUDA code asks for, as its pluggable allocator hands it on: addresses of the CUDA runtime
// on paper (planner/cuda_on_paper), and a record of each request.
#include "memory.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blocks.h"
#include "streams.h"
#include "trace.h"

extern "C" void paper_empty_cache();

namespace paper {
namespace {

std::mutex stream_mutex;
std::unordered_map<const void*, int32_t> streams;  // in the order in which they were first heard of, from 1 on

using PoolId = c10::cuda::MempoolId_t;
struct OpenPool {
  PoolId pool;
  std::function<bool(cudaStream_t)> takes;  // what is allocated on this thread and stream
};
std::mutex pool_mutex;
std::vector<OpenPool> open_pools;
std::map<PoolId, int32_t> pools;  // private ones by their numbers, from 1 on

int32_t pool_of(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(pool_mutex);
  for (const auto& open : open_pools)
    if (open.takes(stream)) return pools[open.pool];
  return 0;
}

void open_pool(int, PoolId pool, std::function<bool(cudaStream_t)> takes) {
  std::lock_guard<std::mutex> lock(pool_mutex);
  pools.try_emplace(pool, static_cast<int32_t>(pools.size()) + 1);
  open_pools.push_back({pool, std::move(takes)});
}

void close_pool(int, PoolId pool) {
  std::lock_guard<std::mutex> lock(pool_mutex);
  std::erase_if(open_pools, [&pool](const OpenPool& open) { return open.pool == pool; });
}

std::atomic<int32_t (*)(int64_t)> lacks_room{nullptr};

// Torch tries another way to convolve where the workspace of the first has no room (ATen/native/cudnn/Conv_v8.cpp).
void check_room_for_workspace(size_t bytes) {
  if (lacks_room == nullptr || !is_workspace_of_convolution()) return;
  const bool lacks = lacks_room.load()(static_cast<int64_t>(bytes)) != 0;
  TORCH_CHECK_WITH(OutOfMemoryError, !lacks, "a workspace of ", bytes, " bytes has no room");
}

void* take(size_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  check_room_for_workspace(bytes);
  const auto index = static_cast<c10::DeviceIndex>(device);
  number_device(index);
  return take_block(bytes, number_of_stream(index, stream), pool_of(stream));
}

void give_back(void* address, size_t, int, cudaStream_t) { give_back_block(address); }

void use(void* address, cudaStream_t stream) {
  record_use(block_at(address), number_of_stream(current_device(), stream));
}

// Torch's documented way to another allocator (torch.cuda.memory.CUDAPluggableAllocator), which says nothing of the
// room that is left.
struct PaperAllocator final : torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
  using CUDAPluggableAllocator::CUDAPluggableAllocator;

  // Of cuDNN's ways to convolve those are tried (cudnn.benchmark) whose workspaces have room (Conv_v8.cpp,
  // get_available_workspace): the whole device's, since the largest is asked for afterwards and refused if it has none.
  void cacheInfo(c10::DeviceIndex, size_t* largest) override {
    size_t total = 0;
    TORCH_CHECK(cudaMemGetInfo(largest, &total) == cudaSuccess);
  }
};

}  // namespace

void install_allocator() {
  const auto pluggable = std::make_shared<PaperAllocator>(&take, &give_back);
  pluggable->init(0);  // how many devices there are is asked in the forked process, which has them
  pluggable->set_record_stream_fn(&use);
  pluggable->set_begin_allocate_to_pool(&open_pool);
  pluggable->set_end_allocate_to_pool_fn(&close_pool);
  pluggable->set_release_pool([](int, PoolId) {});  // it keeps its segments until the cache is emptied: to the end
  pluggable->set_reset_fn([] { paper_empty_cache(); });
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(pluggable);
}

int32_t number_of_stream(c10::DeviceIndex device, const void* stream) {
  std::lock_guard<std::mutex> lock(stream_mutex);
  const auto next = static_cast<int32_t>(streams.size()) + 1;
  return stream_of_device(device, stream == nullptr ? 0 : streams.try_emplace(stream, next).first->second);
}

void forget_streams() {
  std::lock_guard<std::mutex> lock(stream_mutex);
  streams.clear();
}

c10::DeviceIndex current_device() { return c10::cuda::current_device(); }

int32_t current_stream() {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  return number_of_stream(stream.device_index(), stream.stream());
}

}  // namespace paper

// Whether so many bytes more have no room; null: there is room for all.
extern "C" void paper_ask_for_room(int32_t (*lacks)(int64_t)) { paper::lacks_room = lacks; }
