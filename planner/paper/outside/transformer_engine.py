"""Everything that Python code of TransformerEngine finds in `transformer_engine_torch`.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/pybind.cpp, common/util/pybind_helper.h. Names that are not
modelled are there too, as the package takes them while it is imported, and are refused when they are used.
"""

from __future__ import annotations

from typing import Any

from planner.paper.outside import transformer_engine_kernels

_ENUMERATIONS = (
    "DType", "NVTE_Bias_Type", "NVTE_Mask_Type", "NVTE_Softmax_Type", "NVTE_QKV_Format", "NVTE_QKV_Layout",
    "NVTE_Fused_Attn_Backend", "Float8BlockScaleTensorFormat", "CommOverlapType", "CommOverlapAlgo", "FP8FwdTensors",
    "FP8BwdTensors",
)  # fmt: skip
_FUNCTIONS = (
    "generic_gemm", "te_general_grouped_gemm", "get_num_cublas_streams",
    "layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add",
    "get_fused_attn_backend", "fused_attn_fwd", "fused_attn_bwd", "get_cudnn_version",
    "multi_tensor_l2norm", "multi_tensor_unscale_l2norm",
    "fused_rope_forward", "fused_rope_backward", "fused_qkv_rope_forward", "fused_qkv_rope_backward",
    "dropout_fwd", "dropout_bwd", "swap_first_dims", "bgrad_quantize",
)  # fmt: skip
_IN_PLACE = (
    "multi_tensor_scale", "multi_tensor_adam", "multi_tensor_adam_param_remainder", "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master", "multi_tensor_sgd",
)  # fmt: skip
_SOFTMAXES = (
    "scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax",
    "scaled_aligned_causal_masked_softmax",
)  # fmt: skip
_CLASSES = ("CommOverlap", "CommOverlapBase", "CommOverlapCore", "CommOverlapHelper", "CommOverlapP2P",
            "CommOverlapP2PBase", "FP8TensorMeta")  # fmt: skip
_REFUSED = (
    "quantize", "dequantize", "multi_tensor_quantize", "split_quantize", "fp8_transpose", "compute_amax",
    "fused_amax_and_scale_update_after_reduction", "fp8_block_scaling_compute_partial_amax",
    "fp8_block_scaling_partial_cast", "mxfp8_scaling_compute_partial_amax", "mxfp8_scaling_partial_cast",
    "fused_multi_row_padding", "fused_multi_row_unpadding", "multi_tensor_adam_fp8",
    "multi_tensor_compute_scale_and_scale_inv", "multi_tensor_compute_scale_inv_e8m0",
    "dbias_dgelu", "dbias_dsilu", "dbias_drelu", "dbias_dqgelu", "dbias_dsrelu",
    "moe_permute_fwd", "moe_permute_bwd", "moe_unpermute_fwd", "moe_unpermute_bwd",
    "fused_topk_with_score_function_fwd", "fused_topk_with_score_function_bwd", "fused_score_for_moe_aux_loss_fwd",
    "fused_score_for_moe_aux_loss_bwd", "fused_moe_aux_loss_fwd", "fused_moe_aux_loss_bwd",
    "fa_prepare_fwd", "fa_prepare_bwd", "copy_to_kv_cache", "convert_thd_to_bshd", "convert_bshd_to_thd",
    "thd_read_half_tensor", "thd_second_half_lse_correction", "thd_read_second_half_lse", "thd_out_correction",
    "thd_grad_correction", "thd_get_partitioned_indices", "get_cublasLt_version", "bulk_overlap_ag_with_external_gemm",
    "device_supports_multicast", "get_stream_priority_range", "ubuf_built_with_mpi", "init_nvshmem_backend",
    "create_nvshmem_tensor", "nvshmem_send_on_current_stream", "nvshmem_wait_on_current_stream", "nvshmem_finalize",
)  # fmt: skip


def _names() -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(transformer_engine_kernels, name) for name in (*_ENUMERATIONS, *_FUNCTIONS)}
    found |= dict.fromkeys(_IN_PLACE, transformer_engine_kernels.in_place)
    for each in _SOFTMAXES:
        found |= {
            f"{each}_forward": transformer_engine_kernels.softmax_forward,
            f"{each}_backward": transformer_engine_kernels.softmax_backward,
        }
    for names, parts in ((transformer_engine_kernels.PLAIN, 1), (transformer_engine_kernels.GATED, 2)):
        for each in names:
            backward = each.replace("swiglu", "dswiglu") if each.startswith("clamped") else f"d{each}"
            found |= {
                each: transformer_engine_kernels.activation(each, parts),
                backward: transformer_engine_kernels.gradient(backward),
            }
    found |= {each: transformer_engine_kernels.refused_class(each) for each in _CLASSES}
    return found | {each: transformer_engine_kernels.refused_function(each) for each in _REFUSED}


EXTENSION = _names()
"""By name what stands in the extension."""
