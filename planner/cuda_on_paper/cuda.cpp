// libcuda.so.1 on paper: the part of the public driver API (cuda.h) that torch and Triton call. It has no export
// tables.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "device.h"
#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(CUresult, __VA_ARGS__)

static std::mutex lock;
using Guard = std::lock_guard<std::mutex>;
static int here() {
  int d;
  cudaGetDevice(&d);
  return d;
}

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
ENTRY(cuDriverGetVersion, (int* v), *v = CUDA_VERSION)
ENTRY(cuDeviceGet, (CUdevice* d, int i), *d = i)
API CUresult cuDeviceGetCount(int* n) { return (CUresult)cudaGetDeviceCount(n); }
ENTRY(cuDeviceGetName, (char* s, int n, CUdevice), snprintf(s, n, "%s", Device::get().name().c_str()))
ENTRY(cuDeviceTotalMem_v2, (size_t* n, CUdevice), *n = Device::get().number("totalGlobalMem"))
API CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  if (a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *v = 1;
    return CUDA_SUCCESS;
  }  // the runtime has no such name
  return (CUresult)cudaDeviceGetAttribute(v, (cudaDeviceAttr)a, d);  // both number attributes alike
}
ENTRY(cuCtxGetCurrent, (CUcontext* c), *c = (CUcontext)(1 + (size_t)here()))  // a context is its device's number
ENTRY(cuCtxSetCurrent, (CUcontext c), if (c) cudaSetDevice((int)(size_t)c - 1))
ENTRY(cuCtxGetDevice, (CUdevice* d), *d = here())
API CUresult cuCtxPushCurrent_v2(CUcontext c) { return cuCtxSetCurrent(c); }
API CUresult cuCtxPopCurrent_v2(CUcontext* c) { return c ? cuCtxGetCurrent(c) : CUDA_SUCCESS; }
ENTRY(cuDevicePrimaryCtxGetState, (CUdevice, unsigned* flags, int* active), *flags = 0, *active = 1)
ENTRY(cuDevicePrimaryCtxRetain, (CUcontext* c, CUdevice d), *c = (CUcontext)(1 + (size_t)d))
ENTRY(cuGetErrorString, (CUresult e, const char** s), *s = e ? "error on paper" : "no error")
API CUresult cuGetErrorName(CUresult e, const char** s) { return cuGetErrorString(e, s); }

// Modules that Triton and nvrtc made: loaded, never run.
ENTRY(cuModuleLoadData, (CUmodule* m, const void*), *m = (CUmodule) "module")
API CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(m, nullptr);
}
API CUresult cuModuleLoad(CUmodule* m, const char*) { return cuModuleLoadData(m, nullptr); }
ENTRY(cuModuleGetFunction, (CUfunction* f, CUmodule, const char* name), *f = (CUfunction)strdup(name))
ENTRY(cuFuncGetAttribute, (int* v, CUfunction_attribute a, CUfunction),
      *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0)
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction f, int threads, size_t shared) {
  return (CUresult)cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, threads, shared, 0);
}
ENTRY(cuOccupancyMaxPotentialClusterSize, (int* n, CUfunction, const CUlaunchConfig*), *n = 8)
ENTRY(cuOccupancyMaxActiveClusters, (int* n, CUfunction, const CUlaunchConfig*),
      *n = (int)Device::get().number("multiProcessorCount") / 2)
ENTRY(cuLibraryLoadData, (CUlibrary* l, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned),
      *l = (CUlibrary) "library")
ENTRY(cuLibraryGetKernel, (CUkernel* k, CUlibrary, const char* name), *k = (CUkernel)strdup(name))
ENTRY(cuKernelGetFunction, (CUfunction* f, CUkernel k), *f = (CUfunction)k)
API CUresult cuKernelGetAttribute(int* v, CUfunction_attribute a, CUkernel k, CUdevice) {
  return cuFuncGetAttribute(v, a, (CUfunction)k);
}
API CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
API CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }
ENTRY(cuLaunchKernelEx, (const CUlaunchConfig* c, CUfunction, void**, void**), paper_launched((void*)c->hStream))
ENTRY(cuLaunchKernel,
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream s, void**, void**),
      paper_launched((void*)s))
ENTRY(cuLaunchCooperativeKernel,
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream s, void**),
      paper_launched((void*)s))
ENTRY(cuLaunchHostFunc, (CUstream, CUhostFn f, void* data), f(data))
// Only kernels look into it.
ENTRY(cuTensorMapEncodeTiled,
      (CUtensorMap * map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
       const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
       CUtensorMapFloatOOBfill),
      memset(map, 0, sizeof *map))
API CUresult cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
  cudaPointerAttributes t;
  cudaPointerGetAttributes(&t, (void*)p);
  if (t.type == cudaMemoryTypeUnregistered) return CUDA_ERROR_INVALID_VALUE;
  if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || a == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
    *(CUdeviceptr*)v = p;
  else if (a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    *(unsigned*)v = t.type == cudaMemoryTypeDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  else if (a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    *(int*)v = t.device;
  else
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

// Virtual memory (torch's expandable segments): a handle is physical memory, counted; an address range is addresses
// alone.
struct Physical {
  size_t bytes;
  int device;
  int uses;
};
static std::map<CUdeviceptr, Physical*> mapped;
static void drop(Physical* p) {
  if (--p->uses == 0) {
    paper_give(p->bytes, p->device);
    delete p;
  }
}
ENTRY(cuMemGetAllocationGranularity, (size_t* n, const CUmemAllocationProp*, CUmemAllocationGranularity_flags),
      *n = 2 << 20)
API CUresult cuMemAddressReserve(CUdeviceptr* p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *p = (CUdeviceptr)paper_addresses(bytes);
  return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
ENTRY(cuMemAddressFree, (CUdeviceptr p, size_t bytes), paper_addresses_free((void*)p, bytes))
API CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t bytes, const CUmemAllocationProp* prop,
                         unsigned long long) {
  if (!paper_take(bytes, prop->location.id)) return CUDA_ERROR_OUT_OF_MEMORY;
  *h = (CUmemGenericAllocationHandle) new Physical{bytes, prop->location.id, 1};
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  Guard g(lock);
  drop((Physical*)h);
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr p, size_t, size_t, CUmemGenericAllocationHandle h, unsigned long long) {
  Guard g(lock);
  ((Physical*)h)->uses++;
  mapped[p] = (Physical*)h;
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
API CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
  {
    Guard g(lock);
    for (auto i = mapped.lower_bound(p); i != mapped.end() && i->first < p + bytes; i = mapped.erase(i))
      drop(i->second);
  }
  paper_forget((void*)p, bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  return cudaMalloc((void**)p, n) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
API CUresult cuMemFree_v2(CUdeviceptr p) { return (CUresult)cudaFree((void*)p); }
API CUresult cuMemGetInfo_v2(size_t* f, size_t* t) { return (CUresult)cudaMemGetInfo(f, t); }
API CUresult cuMemcpyDtoH_v2(void* h, CUdeviceptr d, size_t n) {
  return (CUresult)cudaMemcpy(h, (void*)d, n, cudaMemcpyDefault);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void* h, size_t n) {
  return (CUresult)cudaMemcpy((void*)d, h, n, cudaMemcpyDefault);
}
API CUresult cuGetProcAddress_v2(const char* name, void** f, int, cuuint64_t, CUdriverProcAddressQueryResult* r) {
  std::string n = name;
  *f = dlsym(RTLD_DEFAULT, (n + "_v2").c_str());
  if (!*f) *f = dlsym(RTLD_DEFAULT, name);
  if (r) *r = *f ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
