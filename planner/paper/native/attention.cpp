// Which attention kernel CUDA would take for a target: flash, memory-efficient, cuDNN or math.
//
// The conditions are those of torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, as far as they concern
// dense tensors; what torch shares between its backends is called in torch's own headers.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <vector>

#include "attention.h"
#include "versions.h"

namespace paper {
namespace {

using at::SDPBackend;
using sdp::sdp_params;

constexpr bool kQuiet = false;

// Compute capability, major * 10 + minor; 0 stands for the CPU.
int capability = 90;

bool at_least(int lowest) { return capability >= lowest; }

bool same_dtype_in(const sdp_params& params, std::initializer_list<at::ScalarType> allowed) {
  return sdp::check_tensor_dtype(params, std::vector<at::ScalarType>(allowed), kQuiet);
}

bool half_dtype(const sdp_params& params) {
  return at_least(80) ? same_dtype_in(params, {at::kHalf, at::kBFloat16}) : same_dtype_in(params, {at::kHalf});
}

// Elements that the memory-efficient kernels want a head dim to be a multiple of.
int64_t gemm_alignment(const sdp_params& params) {
  const bool is_half = params.query.scalar_type() == at::kHalf || params.query.scalar_type() == at::kBFloat16;
  const bool tensor_cores = at_least(80) || (at_least(70) && is_half);
  const int64_t smallest = at_least(80) ? 4 : 1;
  return tensor_cores ? std::max<int64_t>(smallest, 128 / (is_half ? 16 : 32)) : smallest;
}

// The backward for large heads needs more shared memory than these generations have.
bool trains_large_heads(const sdp_params& params) {
  const bool small = (capability >= 86 && capability <= 89) || (capability >= 120 && capability <= 121);
  if (!small || !sdp::input_requires_grad(params)) return true;
  const auto head_dim = params.query.size(-1);
  return head_dim <= 192 || (params.dropout == 0.0 && head_dim > 224);
}

bool can_use_flash(const sdp_params& params) {
  if (!sdp::check_runtime_disabled_flash(params, kQuiet) || !sdp::check_tensor_shapes(params, kQuiet)) return false;
  if (!sdp::check_for_attn_mask(params, kQuiet) || !at_least(80) || capability > 121) return false;
  const auto head_dim = params.query.size(-1);
  if (params.key.size(-1) != head_dim || params.value.size(-1) != head_dim || head_dim > 256) return false;
  if (!trains_large_heads(params)) return false;
  if (params.is_causal && params.query.size(-2) != params.key.size(-2)) return false;
  return half_dtype(params) && sdp::check_batch_size_and_num_heads_dense<true>(params, kQuiet) &&
         sdp::check_nonzero_sequence_lengths_dense(params, kQuiet) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(params, kQuiet);
}

bool aligned_heads(const sdp_params& params) {
  const auto alignment = gemm_alignment(params);
  const auto query = params.query.size(-1), value = params.value.size(-1);
  return query == params.key.size(-1) && query > 0 && value > 0 && query % alignment == 0 && value % alignment == 0;
}

bool can_use_memory_efficient(const sdp_params& params) {
  if (!sdp::check_runtime_disabled_mem_efficient(params, kQuiet)) return false;
  if (!sdp::check_tensor_shapes(params, kQuiet) || !at_least(50) || capability > 121) return false;
  if (!aligned_heads(params) || !sdp::check_nonzero_sequence_lengths_dense(params, kQuiet)) return false;
  if (!sdp::check_last_dim_stride_equals_1_dense<false>(params, kQuiet)) return false;
  if (!sdp::check_batch_size_and_num_heads_dense<false>(params, kQuiet)) return false;
  return at_least(80) ? same_dtype_in(params, {at::kHalf, at::kFloat, at::kBFloat16})
                      : same_dtype_in(params, {at::kHalf, at::kFloat});
}

bool cudnn_head_dims(const sdp_params& params) {
  const auto query = params.query.size(-1), value = params.value.size(-1);
  int64_t limit = capability == 90 ? 256 : 128;
  if (capability / 10 == 10 && query == 192 && value == 128) limit = 192;
  return query <= limit && value <= limit && query % 8 == 0 && value % 8 == 0;
}

bool cudnn_dropout(const sdp_params& params) {
  const double sixteenths = params.dropout * 16.0;
  return sixteenths == std::floor(sixteenths) && (params.dropout == 0.0 || params.query.size(2) != 1);
}

bool can_use_cudnn(const sdp_params& params) {
  const auto& context = at::globalContext();
  if (!context.userEnabledCuDNNSDP() || !sdp::check_tensor_shapes(params, kQuiet)) return false;
  if (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly()) return false;
  if (!half_dtype(params) || !sdp::check_attn_mask_shape(params, kQuiet)) return false;
  if (!at_least(80) || capability > 121 || !cudnn_dropout(params)) return false;
  return sdp::check_nonzero_sequence_lengths_dense(params, kQuiet) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(params, kQuiet) &&
         cudnn_takes_heads(params) && cudnn_head_dims(params) &&
         params.key.size(2) != 1;
}

SDPBackend on_gpu(const sdp_params& params) {
  auto& context = at::globalContext();
  for (const auto backend : context.sDPPriorityOrder()) {
    if (backend == SDPBackend::cudnn_attention && can_use_cudnn(params)) return backend;
    if (backend == SDPBackend::flash_attention && can_use_flash(params)) return backend;
    if (backend == SDPBackend::efficient_attention && can_use_memory_efficient(params)) return backend;
    if (backend == SDPBackend::math && context.userEnabledMathSDP()) return backend;
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
               bool gqa) {
  if (capability > 0) {
    return static_cast<int64_t>(on_gpu({query, key, value, mask, dropout, causal, gqa}));
  }
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::_fused_sdp_choice", "")
                             .typed<decltype(choose)>();
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask, dropout, causal, scale, gqa);
}

}  // namespace

void install_attention_choice(torch::Library& aten) {
  aten.impl("_fused_sdp_choice", TORCH_FN(choose));
  // As CUDA does (transformers/cuda/attention.cu): attention then asks without the dispatcher, which tensor subclasses
  // would hear, DTensor among them.
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
}

}  // namespace paper

extern "C" {

// The target from now on, and whether this build of torch prefers cuDNN where it can be had.
void paper_choose_attention_for(int major, int minor, bool cudnn_preferred) {
  paper::capability = major * 10 + minor;
  using at::SDPBackend;
  std::vector<SDPBackend> order{SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math,
                                SDPBackend::cudnn_attention, SDPBackend::overrideable};
  if (cudnn_preferred) {
    order = {SDPBackend::cudnn_attention, SDPBackend::flash_attention, SDPBackend::efficient_attention,
             SDPBackend::math, SDPBackend::overrideable};
  }
  std::vector<int64_t> numbers;
  for (const auto backend : order) numbers.push_back(static_cast<int64_t>(backend));
  at::globalContext().setSDPPriorityOrder(numbers);
}

}  // extern "C"
