// Memory of libcudart on paper. That of the device is address space of this process (readable, writable, without pages
// until touched). Small copies are really made, so that a program gets back what it has copied to the GPU.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "cudart.h"
#include "device.h"
#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(cudaError_t, __VA_ARGS__)

static const size_t KEPT = 1 << 16;  // a copy up to this size is made; a larger one is forgotten (its values: zeros)
static const size_t SPACE = 16ull << 40;  // addresses for all GPUs of this process
static const size_t GRANULE = 2 << 20;    // of physical memory, as cuMemGetAllocationGranularity says on real GPUs

static std::mutex lock;
using Guard = std::lock_guard<std::mutex>;
static size_t round_up(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

static std::map<char*, size_t> holes;  // free addresses
static std::map<int, size_t> used;  // of each GPU
struct Block {
  size_t bytes;
  int device;
};
static std::map<char*, Block> blocks;  // cudaMalloc
static std::map<char*, size_t> pinned;
static std::map<char*, size_t> spaces;  // addresses without pages

static size_t capacity() { return Device::get().number("totalGlobalMem"); }
// As many addresses as there are in one piece: others' heaps may lie anywhere.
static bool reserve_space(size_t least) {
  least += GRANULE;
  for (size_t size = std::max(SPACE, least);; size = std::max(size / 2, least)) {
    // As a stack: other private writable addresses count as data of the process (RLIMIT_DATA), touched or not, and pages
    // of shared ones stay when no process maps them any more.
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_GROWSDOWN;
    void* space = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (space == MAP_FAILED && size == least) return false;
    if (space == MAP_FAILED) continue;
    madvise(space, size, MADV_NOHUGEPAGE);
    madvise(space, size, MADV_DONTDUMP);
    spaces[(char*)space] = size;
    char* first = (char*)round_up((size_t)space);
    holes[first] = (char*)space + size - first;
    return true;
  }
}
API void* paper_addresses(size_t bytes) {
  Guard g(lock);
  bytes = round_up(bytes);
  const auto fits = [bytes](const auto& hole) { return hole.second >= bytes; };
  auto h = std::find_if(holes.begin(), holes.end(), fits);
  if (h == holes.end()) {
    if (!reserve_space(bytes)) return nullptr;
    h = std::find_if(holes.begin(), holes.end(), fits);
  }
  char* p = h->first;
  const size_t rest = h->second - bytes;
  holes.erase(h);
  if (rest) holes[p + bytes] = rest;
  return p;
}
API void paper_forget(void* p, size_t bytes) {  // whole pages are dropped, the ends are cleared
  uintptr_t from = (uintptr_t)p, to = from + bytes, a = (from + 4095) & ~4095ull, b = to & ~4095ull;
  if (a >= b) {
    memset(p, 0, bytes);
    return;
  }
  madvise((void*)a, b - a, MADV_DONTNEED);
  memset(p, 0, a - from);
  memset((void*)b, 0, to - b);
}
API void paper_addresses_free(void* address, size_t bytes) {
  bytes = round_up(bytes);
  madvise(address, bytes, MADV_DONTNEED);
  Guard g(lock);
  auto h = holes.emplace((char*)address, bytes).first;
  if (auto n = std::next(h); n != holes.end() && h->first + h->second == n->first) {
    h->second += n->second;
    holes.erase(n);
  }
  if (h != holes.begin()) {
    auto p = std::prev(h);
    if (p->first + p->second == h->first) {
      p->second += h->second;
      holes.erase(h);
    }
  }
}
API bool paper_take(size_t bytes, int device) {
  Guard g(lock);
  bytes = round_up(bytes);
  if (used[device] + bytes > capacity()) return false;
  used[device] += bytes;
  return true;
}
API void paper_give(size_t bytes, int device) {
  Guard g(lock);
  used[device] -= round_up(bytes);
}
static bool on_device(const void* p) {  // with the lock
  auto next = spaces.upper_bound((char*)p);
  if (next == spaces.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return (char*)p < begin + size;
}

API cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = nullptr;
  if (!bytes) return cudaSuccess;
  if (!paper_take(bytes, current_device)) return fail(cudaErrorMemoryAllocation);
  *p = paper_addresses(bytes);
  if (!*p) return fail(cudaErrorMemoryAllocation);
  Guard g(lock);
  blocks[(char*)*p] = {bytes, current_device};
  return cudaSuccess;
}
API cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  Block b;
  {
    Guard g(lock);
    auto i = blocks.find((char*)p);
    if (i == blocks.end()) return fail(cudaErrorInvalidValue);
    b = i->second;
    blocks.erase(i);
  }
  if (b.device >= 0) paper_give(b.bytes, b.device);
  paper_addresses_free(p, b.bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Guard g(lock);
  *total = Device::get().number("totalGlobalMem");
  *free = capacity() - used[current_device];
  return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
API cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
ENTRY(cudaDeviceGetDefaultMemPool, (cudaMemPool_t* pool, int), *pool = (cudaMemPool_t) "pool")
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  Guard g(lock);
  *(uint64_t*)v = used[current_device];
  return cudaSuccess;
}
API cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) {  // of the host and the device, as both use it
  *p = paper_addresses(bytes);
  Guard g(lock);
  blocks[(char*)*p] = {bytes, -1};
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
#else
API cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) {
#endif
  return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {  // real memory, whose pages come when touched
  *p = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*p == MAP_FAILED) {
    *p = nullptr;
    return fail(cudaErrorMemoryAllocation);
  }
  if (auto* l = paper_listener()) l->host_memory(*p, bytes);
  Guard g(lock);
  pinned[(char*)*p] = bytes ? bytes : 1;
  return cudaSuccess;
}
API cudaError_t cudaMallocHost(void** p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
API cudaError_t cudaFreeHost(void* p) {
  if (auto* l = paper_listener()) l->host_memory(p, 0);
  Guard g(lock);
  auto i = pinned.find((char*)p);
  if (i == pinned.end()) return p ? fail(cudaErrorInvalidValue) : cudaSuccess;
  munmap(p, i->second);
  pinned.erase(i);
  return cudaSuccess;
}
API cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  Guard g(lock);
  pinned[(char*)p] = bytes;
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* p) {
  Guard g(lock);
  pinned.erase((char*)p);
  return cudaSuccess;
}
ENTRY(cudaHostGetDevicePointer, (void** d, void* h, unsigned), *d = h)
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  a->device = -2;
  Guard g(lock);
  auto i = pinned.upper_bound((char*)p);
  if (i != pinned.begin() && (--i, (char*)p < i->first + i->second)) {
    a->type = cudaMemoryTypeHost;
    a->hostPointer = a->devicePointer = (void*)p;
    a->device = 0;
  }
  if (on_device(p)) {
    a->type = cudaMemoryTypeDevice;
    a->devicePointer = (void*)p;
    a->device = current_device;
    auto b = blocks.upper_bound((char*)p);
    if (b != blocks.begin()) a->device = std::max(std::prev(b)->second.device, 0);
  }
  return cudaSuccess;
}

// ---------------------------------------------------------------- copies
static cudaError_t copy(void* to, const void* from, size_t bytes) {
  bool to_device, from_device;
  {
    Guard g(lock);
    to_device = on_device(to), from_device = on_device(from);
  }
  if (bytes <= KEPT || (!to_device && !from_device))
    memmove(to, from, bytes);
  else if (to_device)
    paper_forget(to, bytes);  // large contents are not kept
  return cudaSuccess;         // large, to the host: left as it is, so that no pages of the host fill
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) {
  if (auto* l = paper_listener()) l->host_waits(nullptr);
  return copy(to, from, n);
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) {
  return copy(to, from, n);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n, cudaStream_t) {
  return copy(to, from, n);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height,
                                  cudaMemcpyKind, cudaStream_t) {
  if (width * height > KEPT) return cudaSuccess;
  for (size_t i = 0; i < height; i++) memmove((char*)to + i * tp, (char*)from + i * fp, width);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* p, int v, size_t n) {
  if (n <= KEPT)
    memset(p, v, n);
  else
    paper_forget(p, n);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return cudaMemset(p, v, n); }
