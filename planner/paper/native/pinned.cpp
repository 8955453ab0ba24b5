// Page-locked memory is the runtime's own here.
#include "pinned.h"

#include <cuda_runtime_api.h>

namespace paper {

bool is_pinned(const void* address) {
  cudaPointerAttributes known;
  return cudaPointerGetAttributes(&known, address) == cudaSuccess && known.type == cudaMemoryTypeHost;
}

}  // namespace paper
