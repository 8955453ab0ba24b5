// libnvidia-ml.so.1 on paper: torch asks it for a GPU's fabric and neighbours; there are none. (Numbers as in NVIDIA's
// NVML reference.)
#include <cstring>

#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(int, __VA_ARGS__)
static const int OK = 0, NOT_SUPPORTED = 3;
API int nvmlInit_v2() { return OK; }
API int nvmlShutdown() { return OK; }
API const char* nvmlErrorString(int) { return "not supported on paper"; }
ENTRY(nvmlDeviceGetHandleByPciBusId_v2, (const char* bus, void** device), *device = strdup(bus))
ENTRY(nvmlDeviceGetHandleByIndex_v2, (unsigned, void** device), *device = (void*)"device")
API int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return NOT_SUPPORTED; }
ENTRY(nvmlDeviceGetComputeRunningProcesses, (void*, unsigned* n, void*), *n = 0)
ENTRY(nvmlDeviceGetComputeRunningProcesses_v3, (void*, unsigned* n, void*), *n = 0)
API int nvmlSystemGetCudaDriverVersion_v2(int*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(
    void*, void* info) {  // its first word is its version, whose low 24 bits are its size; zeros: no fabric
  unsigned version = *(unsigned*)info;
  memset((char*)info + 4, 0, (version & 0xffffff) - 4);
  return OK;
}
