"""Enumerations of the extension, with the values of its C++ headers.

Source, TransformerEngine 2.11: transformer_engine/common/util/pybind_helper.h, common/include/transformer_engine/
{transformer_engine,fused_attn,comm_gemm_overlap}.h, pytorch/csrc/common.h.
"""

from __future__ import annotations

from enum import IntEnum

import torch


class DType(IntEnum):
    kByte = 0  # noqa: N815
    kInt16 = 1  # noqa: N815
    kInt32 = 2  # noqa: N815
    kInt64 = 3  # noqa: N815
    kFloat32 = 4  # noqa: N815
    kFloat16 = 5  # noqa: N815
    kBFloat16 = 6  # noqa: N815
    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815
    kFloat8E8M0 = 9  # noqa: N815
    kFloat4E2M1 = 10  # noqa: N815


DTYPES = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kInt64: torch.int64,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}
"""Those of torch that are not quantized."""


NVTE_Bias_Type = IntEnum(
    "NVTE_Bias_Type", ["NVTE_NO_BIAS", "NVTE_PRE_SCALE_BIAS", "NVTE_POST_SCALE_BIAS", "NVTE_ALIBI"], start=0
)
NVTE_Mask_Type = IntEnum(
    "NVTE_Mask_Type",
    ["NVTE_NO_MASK", "NVTE_PADDING_MASK", "NVTE_CAUSAL_MASK", "NVTE_PADDING_CAUSAL_MASK",
     "NVTE_CAUSAL_BOTTOM_RIGHT_MASK", "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK"],
    start=0,
)  # fmt: skip
NVTE_Softmax_Type = IntEnum(
    "NVTE_Softmax_Type", ["NVTE_VANILLA_SOFTMAX", "NVTE_OFF_BY_ONE_SOFTMAX", "NVTE_LEARNABLE_SOFTMAX"], start=0
)
NVTE_QKV_Format = IntEnum(
    "NVTE_QKV_Format",
    ["NVTE_SBHD", "NVTE_BSHD", "NVTE_THD", "NVTE_BSHD_2SBHD", "NVTE_SBHD_2BSHD", "NVTE_THD_2BSHD", "NVTE_THD_2SBHD"],
    start=0,
)
NVTE_QKV_Layout = IntEnum(
    "NVTE_QKV_Layout",
    ["NVTE_SB3HD", "NVTE_SBH3D", "NVTE_SBHD_SB2HD", "NVTE_SBHD_SBH2D", "NVTE_SBHD_SBHD_SBHD", "NVTE_BS3HD",
     "NVTE_BSH3D", "NVTE_BSHD_BS2HD", "NVTE_BSHD_BSH2D", "NVTE_BSHD_BSHD_BSHD", "NVTE_T3HD", "NVTE_TH3D",
     "NVTE_THD_T2HD", "NVTE_THD_TH2D", "NVTE_THD_THD_THD", "NVTE_SBHD_BSHD_BSHD", "NVTE_BSHD_SBHD_SBHD",
     "NVTE_THD_BSHD_BSHD", "NVTE_THD_SBHD_SBHD", "NVTE_Paged_KV_BSHD_BSHD_BSHD", "NVTE_Paged_KV_BSHD_SBHD_SBHD",
     "NVTE_Paged_KV_SBHD_BSHD_BSHD", "NVTE_Paged_KV_SBHD_SBHD_SBHD", "NVTE_Paged_KV_THD_BSHD_BSHD",
     "NVTE_Paged_KV_THD_SBHD_SBHD"],
    start=0,
)  # fmt: skip
NVTE_Fused_Attn_Backend = IntEnum(
    "NVTE_Fused_Attn_Backend",
    {"NVTE_No_Backend": -1, "NVTE_F16_max512_seqlen": 0, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2},
)
Float8BlockScaleTensorFormat = IntEnum("Float8BlockScaleTensorFormat", ["GEMM_READY", "COMPACT"], start=0)
CommOverlapType = IntEnum("CommOverlapType", ["RS", "AG"], start=0)
CommOverlapAlgo = IntEnum(
    "CommOverlapAlgo",
    ["BULK_OVERLAP_AG", "BULK_OVERLAP_RS", "SPLIT_PIPELINED_AG_P2P", "SPLIT_PIPELINED_RS", "SPLIT_PIPELINED_RS_P2P",
     "ATOMIC_GEMM_RS", "ATOMIC_GEMM_AG_P2P", "ATOMIC_GEMM_RS_P2P", "EXTERNAL_BULK_OVERLAP_AG"],
    start=0,
)  # fmt: skip
FP8FwdTensors = IntEnum(
    "FP8FwdTensors",
    ["GEMM1_INPUT", "GEMM1_WEIGHT", "GEMM1_OUTPUT", "GEMM2_INPUT", "GEMM2_WEIGHT", "GEMM2_OUTPUT", "GEMM3_INPUT",
     "GEMM3_WEIGHT", "GEMM3_OUTPUT"],
    start=0,
)  # fmt: skip
FP8BwdTensors = IntEnum(
    "FP8BwdTensors",
    ["GRAD_OUTPUT1", "GRAD_INPUT1", "GRAD_OUTPUT2", "GRAD_INPUT2", "GRAD_OUTPUT3", "GRAD_INPUT3"],
    start=0,
)
