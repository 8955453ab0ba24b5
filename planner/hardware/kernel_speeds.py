"""How fast GPUs compute kernels of training: measured figures that others published, and what stands for others."""

from __future__ import annotations

from dataclasses import dataclass

from planner.hardware.catalog import speed_of
from planner.hardware.gpu_records import GpuRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpeed:
    """Large matrix products of one GPU as torch.matmul reaches them, 10^12 operations a second."""

    bfloat16: float
    tfloat32: float
    float32: float
    """Without tensor cores."""
    source: str


_GRID = "1,080 shapes of at least 256 x 128 x 128, vLLM 0.24 (ai-dynamo/aiconfigurator 095f58a5)"
_DATABASE = "zzc0721/torch-performance-test-data database.md"
_SQUARES = "torch.matmul of 8192 and 10240 squared (zzc0721/torch-performance-test-data"
PRODUCT_SPEEDS = {
    "H100-SXM-80GB": ProductSpeed(bfloat16=765, tfloat32=374, float32=51,
                                  source=f"{_GRID}; tf32, fp32: {_SQUARES} #79)"),
    "H100-PCIE-80GB": ProductSpeed(bfloat16=482, tfloat32=233, float32=42, source=f"{_SQUARES} #95, torch 2.9)"),
    "H100-NVL-94GB": ProductSpeed(bfloat16=532, tfloat32=257, float32=46,
                                  source="H100 PCIe's by the data sheets: both have 350 to 400 W where SXM has 700"),
    "A100-PCIE-40GB": ProductSpeed(bfloat16=214, tfloat32=100, float32=17, source=f"{_SQUARES} #108, torch 2.8)"),
    "A100-PCIE-80GB": ProductSpeed(bfloat16=233, tfloat32=100, float32=17,
                                   source="products above 10^12 (MooreThreads/SimuMax 4dcaae51 a100_pcie.json)"),
    "A100-SXM-80GB": ProductSpeed(bfloat16=253, tfloat32=120, float32=19.2,
                                  source=f"{_GRID}; tf32, fp32: {_DATABASE}"),
    "A40-48GB": ProductSpeed(bfloat16=116, tfloat32=59, float32=30, source=f"{_SQUARES} #185, torch 2.11)"),
    "A10G-24GB": ProductSpeed(bfloat16=68, tfloat32=34, float32=25, source=f"{_SQUARES} #126, torch 2.7)"),
    "L4-24GB": ProductSpeed(bfloat16=70.9, tfloat32=35, float32=15.4,
                            source=_DATABASE),
    "L40S-48GB": ProductSpeed(bfloat16=200, tfloat32=100, float32=46.9,
                              source=f"{_GRID}; fp32: {_DATABASE}"),
    "RTX4090-24GB": ProductSpeed(bfloat16=159, tfloat32=85, float32=52, source=f"{_SQUARES} #78, torch 2.7)"),
    "RTX5090-32GB": ProductSpeed(bfloat16=236, tfloat32=118, float32=66, source=f"{_SQUARES} #124, torch 2.8)"),
    "RTX-PRO-6000-Server-96GB": ProductSpeed(bfloat16=409, tfloat32=204, float32=77, source=_DATABASE),
    "RTX-A6000-48GB": ProductSpeed(bfloat16=123, tfloat32=61, float32=23.9, source=_DATABASE),
    "L20-48GB": ProductSpeed(bfloat16=114, tfloat32=58, float32=37.3, source=_DATABASE),
    "H20-SXM-96GB": ProductSpeed(bfloat16=142, tfloat32=71.8, float32=32, source=_DATABASE),
    "B200-SXM-180GB": ProductSpeed(bfloat16=1500, tfloat32=750, float32=66, source=_GRID),
}  # fmt: skip
"""By the names of the catalog."""
_SAME = {
    "A100-SXM-40GB": "A100-SXM-80GB", "H200-SXM-141GB": "H100-SXM-80GB", "GH200-96GB": "H100-SXM-80GB",
    "GH200-144GB": "H100-SXM-80GB", "GB200-186GB": "B200-SXM-180GB", "B300-SXM-288GB": "B200-SXM-180GB",
    "A800-SXM-80GB": "A100-SXM-80GB", "A800-PCIE-80GB": "A100-PCIE-80GB", "H800-SXM-80GB": "H100-SXM-80GB",
    "H800-PCIE-80GB": "H100-PCIE-80GB", "H20-SXM-141GB": "H20-SXM-96GB",
    "RTX-PRO-6000-Workstation-96GB": "RTX-PRO-6000-Server-96GB",
}  # fmt: skip
_SHARE_OF_SHEET = {"sm_80": 0.8, "sm_90": 0.75}
"""Of the data sheet's bfloat16, for GPUs whose products nobody has published; 0.95 for those that are not for data
centers, by the table."""
TRAINING_SHARES = {"sm_80": 0.92, "sm_90": 0.78, "sm_100": 0.74}
"""Of what products reach in a benchmark that they reach within training, where the GPU's power limit holds for minutes.
A100 and H100 by steps of 7B to 70B models (mosaicml/llm-foundry 8c8dd48f): every second row alone gives 0.91 and 0.78
(docs/results/step-times.md has the others). B200 by the median of 514 shapes (MooreThreads/SimuMax 4dcaae51); of H200
and B200 0.86 to 0.91 were measured with products alone (aiconfigurator). 1 for cards for consumers, which reach their
limit within a benchmark."""


def product_speed(gpu: GpuRecord) -> ProductSpeed | None:
    """The measured speed of a GPU, that of one of the same chip, or a share of its data sheet; None without one."""
    measured = PRODUCT_SPEEDS.get(_SAME.get(gpu.name, gpu.name))
    sheet = speed_of(gpu)
    if measured is not None or sheet is None:
        return measured
    sustained = sheet.teraflops * _SHARE_OF_SHEET.get(gpu.arch, 0.95)
    return ProductSpeed(
        bfloat16=sustained, tfloat32=sustained / 2, float32=gpu.multiprocessors * 0.4,
        source="a share of the data sheet, as measured on GPUs of the architecture",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpeed:
    """Attention of long sequences, without and with a causal mask, as a share of large matrix products; half of the
    square is counted for a causal mask."""

    forward: float
    backward: float
    half_length: float
    """So many keys, on average over the rows, reach half of it."""
    heads_of_64: float = 1.0
    """Of it, for heads of 64 and less."""


ATTENTION_SPEEDS: dict[tuple[str, str], AttentionSpeed] = {
    # FlashAttention-3's paper (2407.08608), figures 5 and 6, H100 SXM5: forward 497 and 648, backward 474 and 561
    # for heads of 64 and 128; FlashAttention-2 324, 370; 291, 322; cuDNN 413, 595; 433, 516.
    ("sm_90", "flash_3"): AttentionSpeed(forward=0.85, backward=0.74, half_length=240, heads_of_64=0.8),
    ("sm_90", "flash_2"): AttentionSpeed(forward=0.49, backward=0.43, half_length=230, heads_of_64=0.88),
    ("sm_90", "cudnn"): AttentionSpeed(forward=0.79, backward=0.68, half_length=190, heads_of_64=0.75),
    # Dao-AILab/flash-attention 0251105a, flash2_a100_fwd_bwd_benchmark.png: 203 forward and backward together.
    ("sm_80", "flash_2"): AttentionSpeed(forward=0.8, backward=0.72, half_length=200, heads_of_64=0.86),
    # Dao-AILab/flash-attention PR 2605 and SimuMax's B200: cuDNN forward 1,120 causal, backward 930.
    ("sm_100", "cudnn"): AttentionSpeed(forward=1.0, backward=0.8, half_length=300, heads_of_64=0.75),
    ("sm_100", "flash_2"): AttentionSpeed(forward=0.35, backward=0.3, half_length=110, heads_of_64=0.88),
}
_OTHER_ATTENTION = AttentionSpeed(forward=0.9, backward=0.75, half_length=100)
"""GeForce RTX 5090 and RTX A5000 with flash-attn 2: 0.8 to 0.9 of their products (gau-nernst/learn-cuda e83c256;
gpu-mode/ring-attention#10)."""


def attention_speed(arch: str, kernel: str) -> AttentionSpeed:
    """Of `flash_2`, `flash_3` or `cudnn` on an architecture."""
    return ATTENTION_SPEEDS.get((arch, kernel), _OTHER_ATTENTION)


MEMORY_SHARES = {"sm_86": 0.9, "sm_89": 0.9, "sm_120": 0.88}
"""Of the data sheet's bandwidth that elementwise and reducing kernels reach: GeForce RTX 4090 0.91 (clpeak#106;
tinygrad/open-gpu-kernel-modules#6), RTX 5090 0.88 (NVIDIA/cccl PR 9764)."""
MEMORY_SHARE = 0.8
"""Of all others: FluidX3D 8986874e measured 0.76 to 0.85 on seven GPUs from A100 to B200."""
SLOW_KERNELS = {
    "aten::native_layer_norm": 0.65, "aten::native_layer_norm_backward": 0.4,
    "aten::_fused_rms_norm": 0.72, "aten::_fused_rms_norm_backward": 0.23,
    "aten::_log_softmax": 0.52, "aten::_log_softmax_backward_data": 0.52, "aten::nll_loss_backward": 0.52,
    "aten::embedding": 0.38,
}  # fmt: skip
"""Of that share, kernels of torch that reach less (A100 and H100: LayerNorm 0.42 to 0.61 and 0.25 to 0.37 of the data
sheet, RMSNorm 0.58 and 0.18, cross entropy of 131,072 classes 0.41, embedding 0.30; linkedin/Liger-Kernel ead96b61,
benchmark/data/all_benchmark_data.csv)."""
KERNEL_SECONDS = 2e-6
"""What the smallest kernel takes in a batch of them (B200, NVIDIA/cccl PR 7391)."""
