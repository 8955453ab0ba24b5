// What differs between the versions of torch that the paper GPU is built for, 2.6 to 2.15, as far as a compiler minds.
//
// Nothing else here asks for a version. What a version does otherwise at run time follows from its own code, which the
// paper GPU calls; what CUDA's kernels of a version allocate is in planner/paper/kernels.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/api/include/torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6, "the paper GPU is built for torch 2.6 and newer");

// Virtual functions that older versions do not have: there nobody calls them.
#if TORCH_VERSION_MINOR >= 7
#define PAPER_OVERRIDE_SINCE_2_7 override
#define PAPER_NOEXCEPT_BEFORE_2_7
#else
#define PAPER_OVERRIDE_SINCE_2_7
#define PAPER_NOEXCEPT_BEFORE_2_7 noexcept
#endif
#if TORCH_VERSION_MINOR >= 9
#define PAPER_OVERRIDE_SINCE_2_9 override
#else
#define PAPER_OVERRIDE_SINCE_2_9
#endif
#if TORCH_VERSION_MINOR >= 10
#define PAPER_OVERRIDE_SINCE_2_10 override
#else
#define PAPER_OVERRIDE_SINCE_2_10
#endif

namespace paper {

inline void register_device_guard(c10::DeviceType type, const c10::impl::DeviceGuardImplInterface* guard) {
#if TORCH_VERSION_MINOR >= 10
  c10::impl::registerDeviceGuard(type, guard);
#else
  c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].store(guard);
#endif
}

// Whether cuDNN takes the heads: since 2.8 keys and values may have other numbers of them.
inline bool cudnn_takes_heads(const sdp::sdp_params& params) {
#if TORCH_VERSION_MINOR >= 8
  return sdp::check_batch_size_and_num_heads_dense<true, false>(params, /*debug=*/false);
#else
  return sdp::check_batch_size_and_num_heads_dense<true>(params, /*debug=*/false);
#endif
}

}  // namespace paper
