// libcudart on paper: the CUDA runtime API of a GPU that is only described. Nothing here needs more than
// cuda_runtime_api.h, but for the ten __cuda* functions that code compiled by nvcc (or clang) calls; those are declared
// in crt/host_runtime.h.
//
// Device memory is address space of this process (readable, writable, without pages until touched). Small copies are
// really made, so that a program gets back what it has copied to the GPU; kernels do nothing. Everything is complete at
// once: streams and events have no queue, and whoever listens keeps the time.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "shared.h"

static const size_t KEPT = 1 << 16;  // a copy up to this size is made; a larger one is forgotten (its values: zeros)
static const size_t SPACE = 16ull << 40;  // addresses for all GPUs of this process
static const size_t GRANULE = 2 << 20;    // of physical memory, as cuMemGetAllocationGranularity says on real GPUs

static std::mutex lock;
using Guard = std::lock_guard<std::mutex>;
static thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static cudaError_t fail(cudaError_t e) { return last_error = e; }

static int device_count() {
  static const int count = [] {
    const char* gpus = getenv("PAPER_GPUS");
    return gpus ? atoi(gpus) : 1;
  }();
  return count;
}
static thread_local int absent_device;  // that was asked for last
static bool is_absent(int device) {
  const bool absent = device < 0 || device >= device_count();
  if (absent) absent_device = device;
  return absent;
}
static size_t round_up(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

// ---------------------------------------------------------------- who listens, and what is not known
static std::atomic<const PaperListener*> listener{nullptr};
API void paper_listen(const PaperListener* who) { listener = who; }
API const PaperListener* paper_listener() { return listener; }
API void paper_works_in(const char* library, void* memory) {
  if (auto* l = paper_listener(); l && memory) l->works_in(library, memory);
}
API int paper_unknown(const char* name, int error) {
  if (auto* l = paper_listener()) l->unknown(name);
  return error;
}
static thread_local void* library_stream = nullptr;
API void paper_library_stream(void* stream) { library_stream = stream; }
API int paper_call() {
  if (auto* l = paper_listener()) l->launched(library_stream);
  return 0;
}

// ---------------------------------------------------------------- memory
static std::map<char*, size_t> holes;  // free addresses
static std::vector<size_t> used(64);
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
    // Shared: private writable addresses count as data of the process, touched or not, which may be limited.
    void* space = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
  madvise((void*)a, b - a, MADV_REMOVE);
  memset(p, 0, a - from);
  memset((void*)b, 0, to - b);
}
API void paper_addresses_free(void* address, size_t bytes) {
  bytes = round_up(bytes);
  madvise(address, bytes, MADV_REMOVE);
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
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t) "pool";
  return cudaSuccess;
}
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
API cudaError_t cudaHostGetDevicePointer(void** d, void* h, unsigned) {
  *d = h;
  return cudaSuccess;
}
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

// ---------------------------------------------------------------- the device
API cudaError_t cudaGetDeviceCount(int* n) {
  *n = device_count();
  return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* d) {
  *d = current_device;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int d) {
  if (is_absent(d)) return fail(cudaErrorInvalidDevice);
  current_device = d;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {  // a macro makes this _v2 in CUDA 12
  const Device& d = Device::get();
  memset(p, 0, sizeof *p);
  if (is_absent(device)) return fail(cudaErrorInvalidDevice);
  snprintf(p->name, sizeof p->name, "%s", d.name().c_str());
  p->uuid.bytes[0] = (char)(device + 1);
  p->pciBusID = device + 1;
  p->totalGlobalMem = d.number("totalGlobalMem");
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->sharedMemPerBlock = d.number("maxSharedMemoryPerBlock");
  p->sharedMemPerBlockOptin = d.number("maxSharedMemoryPerBlockOptin");
  p->sharedMemPerMultiprocessor = d.shared_memory_per_sm();
  p->reservedSharedMemPerBlock = d.number("reservedSharedMemoryPerBlock", 1024);
  p->regsPerBlock = p->regsPerMultiprocessor = (int)d.number("regsPerBlock", 65536);
  p->warpSize = 32;
  p->maxThreadsPerBlock = (int)d.number("maxThreadsPerBlock", 1024);
  p->maxThreadsPerMultiProcessor = (int)d.number("maxThreadsPerSM");
  p->maxBlocksPerMultiProcessor = (int)d.number("maxCtasPerSM");
  int threads[] = {1024, 1024, 64}, grid[] = {2147483647, 65535, 65535};
  memcpy(p->maxThreadsDim, threads, sizeof threads);
  memcpy(p->maxGridSize, grid, sizeof grid);
  p->major = d.capability() / 10;
  p->minor = d.capability() % 10;
  p->multiProcessorCount = (int)d.number("multiProcessorCount");
  p->l2CacheSize = (int)d.number("l2CacheSize");
  p->memoryBusWidth = (int)d.number("memoryBusWidth");
#if CUDART_VERSION < 13000
  p->clockRate = (int)d.number("smClockRateKHz");
  p->memoryClockRate = (int)d.number("memClockRateKHz");
#endif
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->asyncEngineCount = 3;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = 1;
  p->cooperativeLaunch = p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->memoryPoolsSupported = p->hostRegisterSupported = 1;
  p->clusterLaunch = p->major >= 9;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device) {
  cudaDeviceProp p;
  if (auto e = cudaGetDeviceProperties(&p, device)) return e;
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *v = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *v = 64;
      break;
    case cudaDevAttrMaxGridDimX:
      *v = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *v = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *v = (int)p.sharedMemPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = (int)p.sharedMemPerBlockOptin;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *v = (int)p.sharedMemPerMultiprocessor;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *v = (int)p.reservedSharedMemPerBlock;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *v = p.regsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *v = p.maxBlocksPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *v = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *v = p.minor;
      break;
    case cudaDevAttrL2CacheSize:
      *v = p.l2CacheSize;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *v = p.memoryBusWidth;
      break;
    case cudaDevAttrClockRate:
      *v = (int)Device::get().number("smClockRateKHz");
      break;
    case cudaDevAttrMemoryClockRate:
      *v = (int)Device::get().number("memClockRateKHz");
      break;
    case cudaDevAttrTotalConstantMemory:
      *v = 65536;
      break;
    case cudaDevAttrTextureAlignment:
      *v = 512;
      break;
    case cudaDevAttrPciBusId:
      *v = p.pciBusID;
      break;
    case cudaDevAttrAsyncEngineCount:
      *v = 3;
      break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanMapHostMemory:
      *v = 1;
      break;
    default:
      *v = 0;  // what a GPU may lack: peers, fabrics, multicast, hardware decoders
  }
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int d) {
  snprintf(s, n, "0000:%02x:00.0", d + 1);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

// ---------------------------------------------------------------- errors
API cudaError_t cudaGetLastError() {
  auto e = last_error;
  last_error = cudaSuccess;
  return e;
}
API cudaError_t cudaPeekAtLastError() { return last_error; }
struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
static const ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
static const ErrorText& text_of(cudaError_t e) {
  static const ErrorText other{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const auto& known : error_texts)
    if (known.error == e) return known;
  return other;
}
API const char* cudaGetErrorName(cudaError_t e) { return text_of(e).name; }
API const char* cudaGetErrorString(cudaError_t e) {
  static thread_local char text[64];
  if (e != cudaErrorInvalidDevice) return text_of(e).text;
  snprintf(text, sizeof text, "invalid device ordinal (cuda:%d of %d)", absent_device, device_count());
  return text;
}

// ---------------------------------------------------------------- streams and events: always complete; a listener
// keeps the time
struct Stream {
  int priority;
  unsigned flags;
  uint64_t capture = 0;  // the graph that it is or was captured into
};
struct Event {
  int device;
  int64_t number;
  uint64_t capture = 0;  // of the stream that it was recorded on
};
static void* handle_of(cudaStream_t s) {
  return s == cudaStreamLegacy || s == cudaStreamPerThread ? nullptr : (void*)s;
}
static std::vector<bool> ended(1);  // captures, by their numbers from 1 on: the handles of their graphs
static bool is_going_on(uint64_t capture) {
  Guard g(lock);
  return capture && !ended[capture];
}
static uint64_t capture_of(cudaStream_t s) {
  const auto* stream = (Stream*)handle_of(s);
  return stream && is_going_on(stream->capture) ? stream->capture : 0;
}
static void capture(cudaStream_t s, uint64_t graph) {
  ((Stream*)s)->capture = graph;
  if (auto* l = paper_listener()) l->captures(s, (int64_t)graph);
}
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int priority) {
  *s = (cudaStream_t) new Stream{priority, flags};
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = handle_of(s) ? ((Stream*)s)->priority : 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamDestroy(cudaStream_t s) {
  delete (Stream*)s;
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (auto* l = paper_listener()) l->host_waits(handle_of(s));
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  if (auto* l = paper_listener()) l->host_waits_for_device();
  return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  const auto* event = (Event*)e;
  if (handle_of(s) && !capture_of(s) && is_going_on(event->capture)) capture(s, event->capture);
  if (auto* l = paper_listener()) l->stream_waits(handle_of(s), event->number);
  return cudaSuccess;
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = (cudaEvent_t) new Event{current_device, 0};
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete (Event*)e;
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  ((Event*)e)->capture = capture_of(s);
  if (auto* l = paper_listener()) ((Event*)e)->number = l->recorded(handle_of(s));
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (auto* l = paper_listener()) l->host_waits_for_event(((Event*)e)->number);
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0.01f;
  return cudaSuccess;
}  // equal for all: a search by time keeps the first
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* data) {
  f(data);
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
  f(s, cudaSuccess, data);
  return cudaSuccess;
}

// ---------------------------------------------------------------- graphs: what is captured is heard with each replay
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  *status = capture_of(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (!handle_of(s)) return fail(cudaErrorStreamCaptureUnsupported);
  uint64_t graph;
  {
    Guard g(lock);
    graph = ended.size();
    ended.push_back(false);
  }
  capture(s, graph);
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  const uint64_t captured = capture_of(s);
  if (!captured) return fail(cudaErrorIllegalState);
  {
    Guard g(lock);
    ended[captured] = true;
  }
  if (auto* l = paper_listener()) l->captured((int64_t)captured);
  *graph = (cudaGraph_t)captured;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                         size_t*) {
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
                                            cudaGraph_t* graph, const cudaGraphNode_t**, size_t*) {
#endif
  const uint64_t captured = capture_of(s);
  if (id) *id = captured;
  if (graph) *graph = (cudaGraph_t)captured;
  return cudaStreamIsCapturing(s, status);
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;  // torch warns of a graph without any; compiled kernels are not launched here
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = (cudaGraphExec_t)graph;
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return cudaGraphInstantiateWithFlags(exec, graph, 0);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  if (auto* l = paper_listener()) l->replayed((int64_t)exec);
  return cudaSuccess;
}
// Parts of a graph that the GPU chooses between.
API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t*,
                                              const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode) {
  return fail(cudaErrorNotSupported);
}

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return fail(cudaErrorNotSupported);
}  // no other process sees these addresses
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return fail(cudaErrorNotSupported); }

// ---------------------------------------------------------------- kernels: never run
// A handle of a kernel is the address of its host function.
static std::unordered_map<const void*, void*> variables;
static cudaError_t launch(cudaStream_t stream) {
  if (auto* l = paper_listener()) l->launched(handle_of(stream));
  return cudaSuccess;
}
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration>
    configurations;  // kernel<<<...>>>: pushed by the caller, popped in the kernel's host function

API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
API void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
  Guard g(lock);
  variables[host] = calloc(size, 1);
}
API char __cudaInitModule(void**) { return 1; }
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, (cudaStream_t)stream});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  auto c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *(cudaStream_t*)stream = c.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* host) {
  *k = (cudaKernel_t)host;
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void**, size_t, cudaStream_t s) { return launch(s); }
API cudaError_t cudaLaunchKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) { return launch(s); }
API cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3, dim3, void**, size_t, cudaStream_t s) {
  return launch(s);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) { return launch(c->stream); }
API cudaError_t cudaGetSymbolAddress(void** p, const void* host) {
  Guard g(lock);
  *p = variables[host];
  return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbol(const void* host, const void* from, size_t n, size_t at, cudaMemcpyKind) {
  Guard g(lock);
  memcpy((char*)variables[host] + at, from, n);
  return cudaSuccess;
}

// What a kernel was compiled to is not read here. CUB takes ptxVersion to choose block sizes, which decide its
// temporary memory: of what torch was compiled for the newest that is no newer than the GPU, or the oldest of all.
static int compiled_for() {
  static const int chosen = [] {
    const char* compiled = getenv("PAPER_COMPILED_FOR");
    int capability = Device::get().capability(), newest = 0, oldest = 0;
    std::istringstream numbers(compiled ? compiled : "");
    for (int number; numbers >> number; oldest = oldest ? std::min(oldest, number) : number)
      if (number <= capability) newest = std::max(newest, number);
    return newest ? newest : oldest ? oldest : capability;
  }();
  return chosen;
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->ptxVersion = a->binaryVersion = compiled_for();
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int threads, size_t shared,
                                                                       unsigned) {
  const Device& d = Device::get();  // as if 32 registers a thread and no static shared memory
  long long by_threads = d.number("maxThreadsPerSM") / (threads ? (threads + 31) / 32 * 32 : 32),
            by_shared = shared ? d.shared_memory_per_sm() / (long long)(shared + 1024) : 64;
  *n = (int)std::min({by_threads, by_shared, d.number("maxCtasPerSM"), 65536ll / (32 * std::max(threads, 1))});
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* f, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, threads, shared, 0);
}

// ---------------------------------------------------------------- the driver's functions, by name
static cudaError_t entry(const char* name, unsigned version, void** f) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);  // the stand-in beside this library
  std::string n = name;
  *f = version >= 12000 ? dlsym(driver, (n + "_v3").c_str()) : nullptr;
  if (!*f) *f = dlsym(driver, (n + "_v2").c_str());  // the newest that the stand-in has: it has no older ones
  if (!*f) *f = dlsym(driver, name);
  return *f ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
#if CUDART_VERSION >= 12050
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned version, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* r) {
  auto e = entry(name, version, f);
  if (r) *r = e ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return e ? cudaGetLastError(), cudaSuccess : e;
}
#endif
API cudaError_t cudaGetDriverEntryPoint(const char* name, void** f, unsigned long long,
                                        cudaDriverEntryPointQueryResult* r) {
  auto e = entry(name, CUDART_VERSION, f);
  if (r) *r = e ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return e ? cudaGetLastError(), cudaSuccess : e;
}
