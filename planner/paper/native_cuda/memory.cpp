// The memory that torch's own CUDA code asks for, as its pluggable allocator hands it on: addresses of the CUDA runtime
// on paper (planner/cuda_on_paper), and a record of each request.
#include "memory.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "address_space.h"
#include "graph_pools.h"
#include "host_values.h"
#include "streams.h"
#include "trace.h"

extern "C" {
void* paper_addresses(size_t bytes);  // of the runtime on paper
void paper_empty_cache();
}

namespace paper {
namespace {

struct Held {
  int64_t block;
  size_t bytes;
};

std::mutex block_mutex;
AddressSpace space(&paper_addresses);
std::unordered_map<const void*, Held> blocks;
size_t requested = 0;
size_t highest_requested = 0;

std::mutex stream_mutex;
std::vector<c10::DeviceIndex> devices;  // those that have had blocks, in the order of their first ones
std::unordered_map<const void*, int32_t>
    streams;  // in the order in which they were first heard of; the default one is 0
constexpr int kStreamBits = 24;
void (*on_use)() = nullptr;

int32_t number_of_device(c10::DeviceIndex device) {
  const auto found = std::find(devices.begin(), devices.end(), device);
  if (found != devices.end()) return static_cast<int32_t>(found - devices.begin());
  devices.push_back(device);
  return static_cast<int32_t>(devices.size() - 1);
}

void* take(size_t bytes, int device, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  if (on_use != nullptr) on_use();
  void* address = nullptr;
  {
    std::lock_guard<std::mutex> lock(block_mutex);
    address = space.take(bytes);
    blocks[address] = {-1, bytes};  // in use, before it is known as what
    requested += bytes;
    highest_requested = std::max(highest_requested, requested);
  }
  const int64_t block =
      record_alloc(bytes, number_of_stream(static_cast<c10::DeviceIndex>(device), stream), pool_now());
  std::lock_guard<std::mutex> lock(block_mutex);
  blocks[address].block = block;
  return address;
}

void give_back(void* address, size_t, int, cudaStream_t) {
  forget(address);
  int64_t block = -1;
  {
    std::lock_guard<std::mutex> lock(block_mutex);
    const auto found = blocks.find(address);
    if (found == blocks.end()) return;
    block = found->second.block;
    requested -= found->second.bytes;
    space.give_back(static_cast<char*>(address), found->second.bytes);
    blocks.erase(found);
  }
  record_free(block);
}

void use(void* address, cudaStream_t stream) {
  record_use(block_at(address), number_of_stream(current_device(), stream));
}

}  // namespace

c10::Allocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// Torch's documented way to another allocator (torch.cuda.memory.CUDAPluggableAllocator), with a function for uses.
void install_allocator() {
  using namespace torch::cuda::CUDAPluggableAllocator;
  const auto ours = createCustomAllocator(&take, &give_back);
  const auto pluggable = std::dynamic_pointer_cast<CUDAPluggableAllocator>(ours);
  pluggable->set_record_stream_fn(&use);
  pluggable->set_reset_fn([] { paper_empty_cache(); });
  changeCurrentAllocator(ours);
}

int32_t number_of_stream(c10::DeviceIndex device, const void* stream) {
  std::lock_guard<std::mutex> lock(stream_mutex);
  const auto next = static_cast<int32_t>(streams.size()) + 1;
  const int32_t number = stream == nullptr ? 0 : streams.try_emplace(stream, next).first->second;
  return number_of_device(device) << kStreamBits | number;
}

c10::DeviceIndex current_device() { return c10::cuda::current_device(); }

int32_t current_stream() {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  return number_of_stream(stream.device_index(), stream.stream());
}

void forget_devices() {
  std::lock_guard<std::mutex> lock(stream_mutex);
  devices.clear();
  streams.clear();
}

c10::DeviceIndex device_numbered(int32_t number) {
  std::lock_guard<std::mutex> lock(stream_mutex);
  return number < static_cast<int32_t>(devices.size()) ? devices[number] : -1;
}

int64_t block_at(const void* address) {
  std::lock_guard<std::mutex> lock(block_mutex);
  const auto found = blocks.find(address);
  return found == blocks.end() ? -1 : found->second.block;
}

size_t highest_requested_bytes() {
  std::lock_guard<std::mutex> lock(block_mutex);
  return highest_requested;
}

size_t requested_bytes() {
  std::lock_guard<std::mutex> lock(block_mutex);
  return requested;
}

}  // namespace paper

extern "C" {
int64_t paper_block_at(const void* address) { return paper::block_at(address); }
int32_t paper_device_numbered(int32_t number) { return paper::device_numbered(number); }
void paper_on_use(void (*function)()) { paper::on_use = function; }
int64_t paper_requested_bytes() { return static_cast<int64_t>(paper::requested_bytes()); }
}
