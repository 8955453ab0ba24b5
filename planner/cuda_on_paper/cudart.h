// What the parts of the CUDA runtime on paper share.
#pragma once
#include <cuda_runtime_api.h>

extern thread_local int current_device;
cudaError_t fail(cudaError_t error);  // it is this thread's last one
