// libnvidia-ml.so.1 on paper: torch asks it for a GPU's fabric and neighbours; there are none. (Numbers as in NVIDIA's
// NVML reference.)
#include <cstring>

#include <cuda_runtime_api.h>

#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(int, __VA_ARGS__)
static const int OK = 0;
API int nvmlInit_v2() { return OK; }
API int nvmlShutdown() { return OK; }
ENTRY(nvmlDeviceGetHandleByPciBusId_v2, (const char* bus, void** device), *device = strdup(bus))
ENTRY(nvmlDeviceGetHandleByIndex_v2, (unsigned, void** device), *device = (void*)"device")
API int nvmlDeviceGetCount_v2(unsigned* n) { return cudaGetDeviceCount((int*)n); }
ENTRY(nvmlDeviceGetComputeRunningProcesses, (void*, unsigned* n, void*), *n = 0)
ENTRY(nvmlDeviceGetComputeRunningProcesses_v3, (void*, unsigned* n, void*), *n = 0)
API int nvmlDeviceGetGpuFabricInfoV(
    void*, void* info) {  // its first word is its version, whose low 24 bits are its size; zeros: no fabric
  const unsigned bytes = *(unsigned*)info & 0xffffff;
  if (bytes < 4) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  memset((char*)info + 4, 0, bytes - 4);
  return OK;
}
