// libcudart on paper: the CUDA runtime API of a GPU that is only described. Nothing here needs more than
// cuda_runtime_api.h, but for the ten __cuda* functions that code compiled by nvcc (or clang) calls; those are declared
// in crt/host_runtime.h.
//
// Kernels do nothing, and everything is complete at once: streams and events have no queue, and whoever listens keeps the
// time. Memory is in cudart_memory.cpp.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudart.h"
#include "device.h"
#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(cudaError_t, __VA_ARGS__)

static std::mutex lock;
using Guard = std::lock_guard<std::mutex>;
thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;
cudaError_t fail(cudaError_t e) { return last_error = e; }

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
static std::string refused;  // the last function that was, and of what
API long paper_refuse(const char* function, const char* library, long error) {
  Guard g(lock);
  refused = std::string(function) + " of " + library;
  return error;
}
API const char* paper_refused_function() {
  static thread_local std::string text;
  Guard g(lock);
  return (text = refused).c_str();
}
static thread_local void* library_stream = nullptr;
API void paper_library_stream(void* stream) { library_stream = stream; }
API void paper_launched(void* stream) {
  if (auto* l = paper_listener()) l->launched(stream);
}
API int paper_call() { return paper_launched(library_stream), 0; }

// ---------------------------------------------------------------- the device
API cudaError_t cudaGetDeviceCount(int* n) {
  *n = device_count();
  return *n ? cudaSuccess : fail(cudaErrorNoDevice);
}
ENTRY(cudaGetDevice, (int* d), *d = current_device)
API cudaError_t cudaSetDevice(int d) {
  if (is_absent(d)) return fail(cudaErrorInvalidDevice);
  current_device = d;
  return cudaSuccess;
}
ENTRY(cudaDriverGetVersion, (int* v), *v = CUDART_VERSION)
ENTRY(cudaRuntimeGetVersion, (int* v), *v = CUDART_VERSION)
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
  const std::unordered_map<int, int> known{
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)p.sharedMemPerMultiprocessor},
      {cudaDevAttrReservedSharedMemoryPerBlock, (int)p.reservedSharedMemPerBlock},
      {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
      {cudaDevAttrMaxRegistersPerMultiprocessor, p.regsPerBlock},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrGlobalMemoryBusWidth, p.memoryBusWidth},
      {cudaDevAttrClockRate, (int)Device::get().number("smClockRateKHz")},
      {cudaDevAttrMemoryClockRate, (int)Device::get().number("memClockRateKHz")},
      {cudaDevAttrTotalConstantMemory, 65536},
      {cudaDevAttrTextureAlignment, 512},
      {cudaDevAttrPciBusId, p.pciBusID},
      {cudaDevAttrAsyncEngineCount, 3},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrConcurrentManagedAccess, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrHostRegisterSupported, 1},
      {cudaDevAttrCanMapHostMemory, 1},
  };
  const auto found = known.find(a);  // not there: what a GPU may lack: peers, fabrics, multicast, hardware decoders
  *v = found == known.end() ? 0 : found->second;
  return cudaSuccess;
}
ENTRY(cudaDeviceGetPCIBusId, (char* s, int n, int d), snprintf(s, n, "0000:%02x:00.0", d + 1))
ENTRY(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), *least = 0, *greatest = -5)
ENTRY(cudaDeviceCanAccessPeer, (int* can, int, int), *can = 1)

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
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
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
ENTRY(cudaStreamCreateWithPriority, (cudaStream_t* s, unsigned flags, int priority),
      *s = (cudaStream_t) new Stream{priority, flags})
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
ENTRY(cudaStreamGetPriority, (cudaStream_t s, int* p), *p = handle_of(s) ? ((Stream*)s)->priority : 0)
ENTRY(cudaStreamDestroy, (cudaStream_t s), delete (Stream*)s)
ENTRY(cudaStreamSynchronize, (cudaStream_t s), if (auto* l = paper_listener()) l->host_waits(handle_of(s)))
ENTRY(cudaDeviceSynchronize, (), if (auto* l = paper_listener()) l->host_waits_for_device())
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  const auto* event = (Event*)e;
  if (handle_of(s) && !capture_of(s) && is_going_on(event->capture)) capture(s, event->capture);
  if (auto* l = paper_listener()) l->stream_waits(handle_of(s), event->number);
  return cudaSuccess;
}
ENTRY(cudaEventCreateWithFlags, (cudaEvent_t* e, unsigned), *e = (cudaEvent_t) new Event{current_device, 0})
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
ENTRY(cudaEventDestroy, (cudaEvent_t e), delete (Event*)e)
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  ((Event*)e)->capture = capture_of(s);
  if (auto* l = paper_listener()) ((Event*)e)->number = l->recorded(handle_of(s));
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
ENTRY(cudaEventSynchronize, (cudaEvent_t e),
      if (auto* l = paper_listener()) l->host_waits_for_event(((Event*)e)->number))
// Equal for all: a search by time keeps the first.
ENTRY(cudaEventElapsedTime, (float* ms, cudaEvent_t, cudaEvent_t), *ms = 0.01f)
ENTRY(cudaLaunchHostFunc, (cudaStream_t, cudaHostFn_t f, void* data), f(data))
ENTRY(cudaStreamAddCallback, (cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned), f(s, cudaSuccess, data))

// ---------------------------------------------------------------- graphs: what is captured is heard with each replay
ENTRY(cudaStreamIsCapturing, (cudaStream_t s, cudaStreamCaptureStatus* status),
      *status = capture_of(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone)
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
ENTRY(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode), std::swap(*mode, capture_mode))
// Torch warns of a graph without any; compiled kernels are not launched here.
ENTRY(cudaGraphGetNodes, (cudaGraph_t, cudaGraphNode_t*, size_t* count), *count = 1)
ENTRY(cudaGraphInstantiateWithFlags, (cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long),
      *exec = (cudaGraphExec_t)graph)
ENTRY(cudaGraphInstantiate, (cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long),
      *exec = (cudaGraphExec_t)graph)
ENTRY(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t),
      if (auto* l = paper_listener()) l->replayed((int64_t)exec))

// ---------------------------------------------------------------- kernels: never run
// A handle of a kernel is the address of its host function.
static std::unordered_map<const void*, void*> variables;
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
  if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
  auto c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *(cudaStream_t*)stream = c.stream;
  return cudaSuccess;
}
ENTRY(__cudaGetKernel, (cudaKernel_t* k, const void* host), *k = (cudaKernel_t)host)
#define LAUNCH(NAME, KERNEL) \
  ENTRY(NAME, (KERNEL, dim3, dim3, void**, size_t, cudaStream_t s), paper_launched(handle_of(s)))
LAUNCH(__cudaLaunchKernel, cudaKernel_t)
LAUNCH(cudaLaunchKernel, const void*)
LAUNCH(cudaLaunchCooperativeKernel, const void*)
ENTRY(cudaLaunchKernelExC, (const cudaLaunchConfig_t* c, const void*, void**), paper_launched(handle_of(c->stream)))
#if CUDART_VERSION >= 12080
ENTRY(cudaLibraryLoadData,
      (cudaLibrary_t * l, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*, void**, unsigned),
      *l = (cudaLibrary_t) "library")
ENTRY(cudaLibraryGetKernel, (cudaKernel_t * k, cudaLibrary_t, const char* name), *k = (cudaKernel_t)strdup(name))
#endif
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
