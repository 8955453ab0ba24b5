"""Every GPU that a job can name, with all that is known of it: the one place to add a GPU."""

from __future__ import annotations

from planner.hardware.gpu_records import GpuRecord, MeasuredCommunicator, MeasuredContext, MemoryPool
from planner.units import GIB, KIB, parse_bytes

_GRACE = (
    "The GPU and the Grace processor see each other's memory, but it is two: the capacity is that of the GPU's own HBM,"
    " which is what torch's allocator takes, and the processor's counts for the host."
)
_SPARK = MemoryPool(
    total_bytes=parse_bytes("119.61GiB"), system_bytes=6 * GIB, floor_bytes=8 * GIB,
    source=(
        "at rest 115.85 of 121.69 GiB are available on a GB10 (unslothai/unsloth#10705); GB10 hosts stopped with 6.1 "
        "and 7.7 GiB left (AEON-7/vllm-ultimate-dgx-spark#9), with 7 (vllm-project/vllm#46307); no OOM kill, no panic: "
        "NVIDIA/open-gpu-kernel-modules#1358"
    ),
)  # fmt: skip


_PRO_6000 = ("RTX-PRO-6000", "RTX_PRO_6000", "PRO-6000", "RTX-PRO-6000-Blackwell", "RTX6000BW")
"""The last as NRP and Slurm sites call it."""

# Contexts and communicators are measured on few of them; planner/job/overhead.py says what that means for the others.
# `published.json` is the collection of published measurements kept beside the repository (`PLANNER_TRUTH`). Of it are
# not in here: 1,343 MiB of context on a V100 (nvidia_smi_overhead-44, CUDA 11.2, 2022), which is the whole device's
# use, the driver's reserve included, from the time when all kernels were loaded at once; and 1,176 MiB of an H100
# process with torch 2.11 and CUDA 13.0 (nvidia_smi_overhead-38): a run on one GPU, and NCCL 2.28 gives a communicator
# of one rank a needless buffer of 512 MiB (NVIDIA/nccl#2363), so it says nothing about eight ranks. Nor is all-to-all,
# whose first use took a process on 8 H100 from 1.06 to 4.34 GB (NVIDIA/nccl#1685).
GPUS = (
    GpuRecord(
        name="P100-PCIE-16GB", model="P100", arch="sm_60", total_bytes=parse_bytes("15.89GiB"),
        provenance=(
            "out-of-memory messages of Tesla P100-PCIE-16GB on Kaggle, torch 2.x; get_device_properties on older "
            "drivers 16276 and 16280 MiB"
        ),
        multiprocessors=56, product="Tesla P100-PCIE-16GB", aliases=("P100",), usual=True,
    ),
    GpuRecord(
        name="P100-SXM2-16GB", model="P100", arch="sm_60", total_bytes=parse_bytes("15.89GiB"),
        provenance="as P100-PCIE-16GB: of one chip and memory", multiprocessors=56, product="Tesla P100-SXM2-16GB",
        aliases=("P100",),
    ),
    GpuRecord(
        name="P40-24GB", model="P40", arch="sm_61", total_bytes=parse_bytes("22906MiB"),
        provenance=(
            "with ECC: 22919 MiB in nvidia-smi (driver 470), less what current drivers take besides; without it 24438 "
            "MiB as llama.cpp lists it, 23.87 GiB in ToTheBeginning/PuLID#110"
        ),
        multiprocessors=30, product="Tesla P40", aliases=("P40",),
    ),
    GpuRecord(
        name="GTX1080-8GB", model="GTX-1080", arch="sm_61", total_bytes=parse_bytes("8118MiB"),
        provenance="get_device_properties of GeForce GTX 1080 in a public README (8192 MiB in nvidia-smi)",
        multiprocessors=20, product="NVIDIA GeForce GTX 1080", aliases=("GTX1080", "GTX_1080", "1080"),
    ),
    GpuRecord(
        name="GTX1080Ti-11GB", model="GTX-1080-Ti", arch="sm_61", total_bytes=parse_bytes("10.90GiB"),
        provenance=(
            "out-of-memory messages of GeForce GTX 1080 Ti (11264 MiB in nvidia-smi), torch 2.x; get_device_properties "
            "with torch 2.5.1 says 11172 MiB, on older drivers 11177 and 11178"
        ),
        multiprocessors=28, product="NVIDIA GeForce GTX 1080 Ti", aliases=("GTX1080Ti", "GTX_1080_Ti", "1080Ti"),
    ),
    GpuRecord(
        name="TITAN-Xp-12GB", model="TITAN-Xp", arch="sm_61", total_bytes=parse_bytes("12186MiB"),
        provenance="get_device_properties of NVIDIA TITAN Xp with torch 2.3.1 in a public log; older ones 12193 MiB",
        multiprocessors=30, product="NVIDIA TITAN Xp", aliases=("TITAN-Xp", "TITAN_Xp"),
    ),
    GpuRecord(
        name="V100-SXM2-16GB", model="V100", arch="sm_70", total_bytes=parse_bytes("16160MiB"),
        provenance=(
            "get_device_properties of Tesla V100-SXM2-16GB as the tutorial of YOLOv5 printed it (torch 1.8.0+cu101); "
            "older drivers 16130 MiB"
        ),
        multiprocessors=80, product="Tesla V100-SXM2-16GB", aliases=("V100", "V100-16GB"), usual=True,
    ),
    GpuRecord(
        name="V100-SXM2-32GB", model="V100", arch="sm_70", total_bytes=parse_bytes("31.73GiB"),
        provenance=(
            "out-of-memory messages of V100-SXM2-32GB, torch 2.x; older drivers 31.74 and 31.75 GiB "
            "(liucongg/ChatGLM-Finetuning#73, l294265421/alpaca-rlhf#3)"
        ),
        multiprocessors=80, product="Tesla V100-SXM2-32GB", aliases=("V100", "V100-32GB"),
    ),
    GpuRecord(
        name="V100-PCIE-16GB", model="V100", arch="sm_70", total_bytes=parse_bytes("16160MiB"),
        provenance="get_device_properties of Tesla V100-PCIE-16GB in two public job logs", multiprocessors=80,
        product="Tesla V100-PCIE-16GB", aliases=("V100", "V100-16GB"),
    ),
    GpuRecord(
        name="V100-PCIE-32GB", model="V100", arch="sm_70", total_bytes=parse_bytes("31.73GiB"),
        provenance="as V100-SXM2-32GB; get_device_properties of Tesla V100-PCIE-32GB on an older driver says 32510 MiB",
        multiprocessors=80, product="Tesla V100-PCIE-32GB", aliases=("V100", "V100-32GB"),
    ),
    GpuRecord(
        name="V100S-PCIE-32GB", model="V100S", arch="sm_70", total_bytes=parse_bytes("31.73GiB"),
        provenance="as V100-SXM2-32GB; get_device_properties with torch 2.1 in a public job log says 32501 MiB",
        multiprocessors=80, product="Tesla V100S-PCIE-32GB", aliases=("V100S",),
    ),
    GpuRecord(
        name="TITAN-V-12GB", model="TITAN-V", arch="sm_70", total_bytes=parse_bytes("12064MiB"),
        provenance="get_device_properties of NVIDIA TITAN V with torch 1.12.0 in a public log",
        multiprocessors=80, product="NVIDIA TITAN V", aliases=("TITAN-V", "TITAN_V"),
    ),
    GpuRecord(
        name="T4-16GB", model="T4", arch="sm_75", total_bytes=parse_bytes("14.56GiB"),
        provenance=(
            "out-of-memory messages of Tesla T4 (15,360 MiB in nvidia-smi), torch 2.x on Kaggle and Colab, 2025 and "
            "2026; older drivers 15079 to 15109 MiB"
        ),
        multiprocessors=40, product="Tesla T4", aliases=("T4",),
    ),
    GpuRecord(
        name="A2-16GB", model="A2", arch="sm_86", total_bytes=parse_bytes("14.54GiB"),
        provenance="15356 MiB in nvidia-smi (public run logs), less what CUDA lacks of a T4's 15360",
        multiprocessors=10, product="NVIDIA A2", aliases=("A2",),
    ),
    GpuRecord(
        name="A16-16GB", model="A16", arch="sm_86", total_bytes=parse_bytes("14.54GiB"),
        provenance="of each of the board's four GPUs: 15356 MiB in nvidia-smi (public run logs), so as A2-16GB",
        multiprocessors=10, product="NVIDIA A16", aliases=("A16",),
    ),
    GpuRecord(
        name="A10-24GB", model="A10", arch="sm_86", total_bytes=parse_bytes("22.07GiB"),
        provenance="NVIDIA A10 in two public run logs, torch 2.x, 2026; others 22.18 GiB and, by llama.cpp, 22731 MiB",
        multiprocessors=72, product="NVIDIA A10", aliases=("A10",),
    ),
    GpuRecord(
        name="A10G-24GB", model="A10G", arch="sm_86", total_bytes=parse_bytes("22587MiB"),
        provenance="get_device_properties of NVIDIA A10G in a public run log, 2026; older drivers 22.20 GiB",
        multiprocessors=80, product="NVIDIA A10G", aliases=("A10G",),
    ),
    GpuRecord(
        name="L4-24GB", model="L4", arch="sm_89", total_bytes=parse_bytes("22.03GiB"),
        provenance="out-of-memory messages of NVIDIA L4 (23034 MiB in nvidia-smi), torch 2.x, 2024 to 2026",
        multiprocessors=58, product="NVIDIA L4", aliases=("L4",),
    ),
    GpuRecord(
        name="L20-48GB", model="L20", arch="sm_89", total_bytes=parse_bytes("45457MiB"),
        provenance="NVIDIA L20 as llama.cpp lists it in a public benchmark (46068 MiB in nvidia-smi)",
        multiprocessors=92, product="NVIDIA L20", aliases=("L20",),
    ),
    GpuRecord(
        name="L40-48GB", model="L40", arch="sm_89", total_bytes=parse_bytes("44.39GiB"),
        provenance="as L40S-48GB; two public run logs of NVIDIA L40 say 44.4 GB", multiprocessors=142,
        product="NVIDIA L40", aliases=("L40",),
    ),
    GpuRecord(
        name="L40S-48GB", model="L40S", arch="sm_89", total_bytes=parse_bytes("44.39GiB"),
        provenance=(
            "out-of-memory messages of NVIDIA L40S, torch 2.x; get_device_properties on an older driver says 45589 MiB"
        ),
        multiprocessors=142, product="NVIDIA L40S", aliases=("L40S",),
    ),
    GpuRecord(
        name="A40-48GB", model="A40", arch="sm_86", total_bytes=parse_bytes("45416MiB"),
        provenance="get_device_properties of NVIDIA A40 in a public run log", multiprocessors=84, product="NVIDIA A40",
        aliases=("A40",),
    ),
    GpuRecord(
        name="A30-PCIE-24GB", model="A30", arch="sm_80", total_bytes=parse_bytes("23.50GiB"),
        provenance="out-of-memory message of an A30 in LHRLAB/ChatKBQA#2; others 23.53 GiB (google/RB-Modulation#5)",
        multiprocessors=56, product="NVIDIA A30", aliases=("A30",),
    ),
    GpuRecord(
        name="RTX-A4000-16GB", model="RTX-A4000", arch="sm_86", total_bytes=parse_bytes("15.61GiB"),
        provenance=(
            "out-of-memory message of NVIDIA RTX A4000 in DengKaiCQ/VGGT-Long#6, torch 2.x; get_device_properties with "
            "torch 1.12 says 16117 MiB"
        ),
        multiprocessors=48, product="NVIDIA RTX A4000", aliases=("RTX-A4000", "RTX_A4000", "A4000"),
    ),
    GpuRecord(
        name="RTX-A5000-24GB", model="RTX-A5000", arch="sm_86", total_bytes=parse_bytes("23.54GiB"),
        provenance=(
            "NVIDIA RTX A5000 in three public run logs, 2026: 23.546, 23.55 and 23.56 GiB; get_device_properties with "
            "torch 2.1 says 24248 MiB, with ECC 22721 MiB"
        ),
        multiprocessors=64, product="NVIDIA RTX A5000", aliases=("RTX-A5000", "RTX_A5000", "A5000"),
    ),
    GpuRecord(
        name="RTX-A5500-24GB", model="RTX-A5500", arch="sm_86", total_bytes=parse_bytes("24090MiB"),
        provenance="get_device_properties of NVIDIA RTX A5500 with torch 2.7.1 in a public log",
        multiprocessors=80, product="NVIDIA RTX A5500", aliases=("RTX-A5500", "RTX_A5500", "A5500"),
    ),
    GpuRecord(
        name="RTX-A6000-48GB", model="RTX-A6000", arch="sm_86", total_bytes=parse_bytes("47.40GiB"),
        provenance=(
            "out-of-memory messages of RTX A6000 in several public run logs, torch 2.x; others 47.41 to 47.54 GiB "
            "(google-research/semivl#18)"
        ),
        multiprocessors=84, product="NVIDIA RTX A6000", aliases=("RTX-A6000", "RTX_A6000", "A6000"),
    ),
    GpuRecord(
        name="RTX2080Ti-11GB", model="RTX-2080-Ti", arch="sm_75", total_bytes=parse_bytes("10.57GiB"),
        provenance=(
            "out-of-memory messages and get_device_properties (10825 MiB) of GeForce RTX 2080 Ti, torch 2.6; older "
            "drivers 11009 to 11020 MiB"
        ),
        multiprocessors=68, product="NVIDIA GeForce RTX 2080 Ti", aliases=("RTX2080Ti", "RTX_2080_Ti", "2080Ti"),
    ),
    GpuRecord(
        name="Quadro-RTX-6000-24GB", model="Quadro-RTX-6000", arch="sm_75", total_bytes=parse_bytes("23.46GiB"),
        provenance=(
            "out-of-memory message of an RTX 6000 of 24 GB in a public run log, torch 2.x, 2026; with ECC nvidia-smi "
            "says 23040 MiB instead of 24576"
        ),
        multiprocessors=72, product="Quadro RTX 6000", aliases=("Quadro-RTX-6000", "Quadro_RTX_6000"),
    ),
    GpuRecord(
        name="Quadro-RTX-8000-48GB", model="Quadro-RTX-8000", arch="sm_75", total_bytes=parse_bytes("48380MiB"),
        provenance=(
            "get_device_properties of Quadro RTX 8000 with torch 2.12 in a public README (49152 MiB in nvidia-smi); "
            "47.26 GiB in an out-of-memory message, older drivers 48593 and 48601 MiB"
        ),
        multiprocessors=72, product="Quadro RTX 8000", aliases=("Quadro-RTX-8000", "RTX8000", "RTX_8000"),
    ),
    GpuRecord(
        name="TITAN-RTX-24GB", model="TITAN-RTX", arch="sm_75", total_bytes=parse_bytes("23.46GiB"),
        provenance=(
            "as Quadro-RTX-6000-24GB: nvidia-smi says the same 24576 MiB of TITAN RTX; get_device_properties on older "
            "drivers 24190 and, with torch 1.13.1, 24212 MiB"
        ),
        multiprocessors=72, product="NVIDIA TITAN RTX", aliases=("TITAN-RTX", "TITAN_RTX"),
    ),
    GpuRecord(
        name="RTX3060-12GB", model="RTX-3060", arch="sm_86", total_bytes=parse_bytes("11910MiB"),
        provenance=(
            "get_device_properties of GeForce RTX 3060 with torch 2.10 in a public issue, 11.63 GiB in out-of-memory "
            "messages; older drivers 12036 to 12053 MiB"
        ),
        multiprocessors=28, product="NVIDIA GeForce RTX 3060", aliases=("RTX3060", "RTX_3060", "3060"),
    ),
    GpuRecord(
        name="RTX3080-10GB", model="RTX-3080", arch="sm_86", total_bytes=parse_bytes("10002MiB"),
        provenance=(
            "get_device_properties of GeForce RTX 3080 with torch 2.6.0 in a public log (10240 MiB in nvidia-smi); "
            "with torch 1.13.1 10009 MiB"
        ),
        multiprocessors=68, product="NVIDIA GeForce RTX 3080", aliases=("RTX3080", "RTX_3080", "3080"),
        note=(
            "RTX 3080: the card of 10 GB; for that of 12 GB, which has the same name, write "
            "cluster.gpu: {total_bytes: 11910MiB, arch: sm_86}."
        ),
    ),
    GpuRecord(
        name="RTX3090-24GB", model="RTX-3090", arch="sm_86", total_bytes=parse_bytes("23.56GiB"),
        provenance=(
            "out-of-memory messages of GeForce RTX 3090, torch 2.x, 2025 and 2026; older drivers 24259 and 24268 MiB "
            "(the DeepSpeed page of transformers' documentation)"
        ),
        multiprocessors=82, product="NVIDIA GeForce RTX 3090", aliases=("RTX3090", "RTX_3090", "3090"),
        context=MeasuredContext(
            usual=256, smallest=256, largest=256, software="torch 2.7.1, CUDA 12.8, driver 610.43",
            source="invoke-ai/InvokeAI#9413: nvidia-smi of an idle process",
        ),
    ),
    GpuRecord(
        name="RTX3090Ti-24GB", model="RTX-3090-Ti", arch="sm_86", total_bytes=parse_bytes("24110MiB"),
        provenance=(
            "get_device_properties of GeForce RTX 3090 Ti with torch 2.9.1 in a public run log; older drivers 24142 "
            "and 24214 MiB"
        ),
        multiprocessors=84, product="NVIDIA GeForce RTX 3090 Ti", aliases=("RTX3090Ti", "RTX_3090_Ti", "3090Ti"),
    ),
    GpuRecord(
        name="RTX4060Ti-16GB", model="RTX-4060-Ti", arch="sm_89", total_bytes=parse_bytes("15944MiB"),
        provenance=(
            "GeForce RTX 4060 Ti as llama.cpp lists it in a public issue, 2026 (16380 MiB in nvidia-smi, driver 595.84)"
        ),
        multiprocessors=34, product="NVIDIA GeForce RTX 4060 Ti", aliases=("RTX4060Ti", "RTX_4060_Ti", "4060Ti"),
        note=(
            "RTX 4060 Ti: the card of 16 GB; for that of 8 GB, which has the same name, write "
            "cluster.gpu: {total_bytes: 7806MiB, arch: sm_89}."
        ),
    ),
    GpuRecord(
        name="RTX4070Ti-12GB", model="RTX-4070-Ti", arch="sm_89", total_bytes=parse_bytes("11872MiB"),
        provenance=(
            "get_device_properties of GeForce RTX 4070 Ti with torch 2.1 says 12007 MiB: less what current drivers "
            "take besides of an RTX 3060"
        ),
        multiprocessors=60, product="NVIDIA GeForce RTX 4070 Ti", aliases=("RTX4070Ti", "RTX_4070_Ti", "4070Ti"),
    ),
    GpuRecord(
        name="RTX4090-24GB", model="RTX-4090", arch="sm_89", total_bytes=parse_bytes("23.52GiB"),
        provenance=(
            "out-of-memory messages of GeForce RTX 4090 (24564 MiB in nvidia-smi, driver 595.84); older drivers 23.64 "
            "GiB (deepseek-ai/DeepSeek-V3#205), on Windows 24563 MiB"
        ),
        multiprocessors=128, product="NVIDIA GeForce RTX 4090", aliases=("RTX4090", "RTX_4090", "4090"),
    ),
    GpuRecord(
        name="RTX6000-Ada-48GB", model="RTX-6000-Ada", arch="sm_89", total_bytes=parse_bytes("44.43GiB"),
        provenance=(
            "out-of-memory message of NVIDIA RTX 6000 Ada Generation with ECC (46068 MiB in nvidia-smi), torch 2.x "
            "(DINGYANB/MTVCrafter#21)"
        ),
        multiprocessors=142, product="NVIDIA RTX 6000 Ada Generation", aliases=("RTX6000-Ada", "RTX_6000_Ada"),
        context=MeasuredContext(
            usual=426, smallest=426, largest=426, software="torch 2.10.0, CUDA 13.0",
            source="unslothai/unsloth-zoo#1053: nvidia-smi after torch.cuda.mem_get_info(0)",
        ),
    ),
    GpuRecord(
        name="RTX5090-32GB", model="RTX-5090", arch="sm_120", total_bytes=parse_bytes("31.36GiB"),
        provenance=(
            "out-of-memory messages of GeForce RTX 5090, torch 2.x (TrajectoryCrafter/TrajectoryCrafter#20); others "
            "31.37 GiB (Wan-Video/Wan2.1#465)"
        ),
        multiprocessors=170, product="NVIDIA GeForce RTX 5090", aliases=("RTX5090", "RTX_5090", "5090"),
    ),
    GpuRecord(
        name="RTX-PRO-6000-Server-96GB", model="RTX-PRO-6000", arch="sm_120", total_bytes=parse_bytes("97250MiB"),
        provenance=(
            "get_device_properties of NVIDIA RTX PRO 6000 Blackwell Server Edition in a public run log (97887 MiB in "
            "nvidia-smi), 94.97 GiB in many out-of-memory messages"
        ),
        multiprocessors=188, product="NVIDIA RTX PRO 6000 Blackwell Server Edition", aliases=_PRO_6000, usual=True,
    ),
    GpuRecord(
        name="RTX-PRO-6000-Workstation-96GB", model="RTX-PRO-6000", arch="sm_120", total_bytes=parse_bytes("94.96GiB"),
        provenance="the least of many out-of-memory messages of RTX PRO 6000, torch 2.x: 94.96 to 94.98 GiB",
        multiprocessors=188, product="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", aliases=_PRO_6000,
    ),
    GpuRecord(
        name="RTX-PRO-6000-MaxQ-96GB", model="RTX-PRO-6000", arch="sm_120", total_bytes=parse_bytes("94.96GiB"),
        provenance="as RTX-PRO-6000-Workstation-96GB", multiprocessors=188,
        product="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", aliases=_PRO_6000,
    ),
    GpuRecord(
        name="A100-SXM-40GB", model="A100", arch="sm_80", total_bytes=parse_bytes("39.39GiB"),
        provenance=(
            "out-of-memory messages of A100 40GB, torch 2.x; others 39.49 and 39.50 GiB (TianheWu/CoSeR#10), "
            "get_device_properties of A100-SXM4-40GB on an older driver 40536 MiB (Paddle's documentation)"
        ),
        multiprocessors=108, product="NVIDIA A100-SXM4-40GB", aliases=("A100", "A100-40G", "A100-40GB"),
        communicators=(
            MeasuredCommunicator(
                ranks=4, usual=688, smallest=688, largest=688, software="2023, NVLink",
                source="NVIDIA/nccl#964: each group of more than two ranks after a 4 MB all-reduce",
            ),
            MeasuredCommunicator(
                ranks=2, usual=544, smallest=544, largest=544, software="2023, NVLink",
                source="NVIDIA/nccl#964: each group of two ranks after a 4 MB all-reduce",
            ),
        ),
    ),
    GpuRecord(
        name="A100-PCIE-40GB", model="A100", arch="sm_80", total_bytes=parse_bytes("40326MiB"),
        provenance="get_device_properties of NVIDIA A100-PCIE-40GB in a public README, torch 1.9.0+cu111",
        multiprocessors=108, product="NVIDIA A100-PCIE-40GB", aliases=("A100", "A100-40G", "A100-40GB"),
    ),
    GpuRecord(
        name="A100-SXM-80GB", model="A100", arch="sm_80", total_bytes=parse_bytes("79.14GiB"),
        provenance=(
            "out-of-memory messages of A100 80GB, torch 2.x (lianqi1008/Control-GIC#6); others 79.15 "
            "(vllm-project/vllm#4408) and 79.25 GiB (levihsu/OOTDiffusion#235); the reports do not tell SXM from PCIe"
        ),
        multiprocessors=108, product="NVIDIA A100-SXM4-80GB", aliases=("A100", "A100-80G", "A100-80GB"), usual=True,
    ),
    GpuRecord(
        name="A100-PCIE-80GB", model="A100", arch="sm_80", total_bytes=parse_bytes("79.14GiB"),
        provenance="as A100-SXM-80GB; the reports do not tell SXM from PCIe", multiprocessors=108,
        product="NVIDIA A100 80GB PCIe", aliases=("A100", "A100-80G", "A100-80GB"),
    ),
    GpuRecord(
        name="A800-SXM-80GB", model="A800", arch="sm_80", total_bytes=parse_bytes("79.14GiB"),
        provenance="as A100-SXM-80GB, from which it differs in NVLink; nvidia-smi says the same 81920 MiB",
        multiprocessors=108, product="NVIDIA A800-SXM4-80GB", aliases=("A800", "A800-80G", "A800-80GB"), usual=True,
    ),
    GpuRecord(
        name="A800-PCIE-80GB", model="A800", arch="sm_80", total_bytes=parse_bytes("79.14GiB"),
        provenance="as A800-SXM-80GB; get_device_properties with torch 2.8 in a public run log says 81051 MiB",
        multiprocessors=108, product="NVIDIA A800 80GB PCIe", aliases=("A800", "A800-80G", "A800-80GB"),
    ),
    GpuRecord(
        name="H100-PCIE-80GB", model="H100", arch="sm_90", total_bytes=parse_bytes("81008MiB"),
        provenance="get_device_properties of NVIDIA H100 PCIe in a public script, torch 2.0.1+cu117",
        multiprocessors=114, product="NVIDIA H100 PCIe", aliases=("H100",),
    ),
    GpuRecord(
        name="H100-SXM-80GB", model="H100", arch="sm_90", total_bytes=parse_bytes("79.10GiB"),
        provenance=(
            "total_gpu_memory of 8xH100 in huggingface/trl#2688 and many out-of-memory messages, torch 2.x; "
            "get_device_properties of NVIDIA H100 80GB HBM3 with torch 2.7.0+cu128 says 81089 MiB"
        ),
        multiprocessors=132, product="NVIDIA H100 80GB HBM3", aliases=("H100",), usual=True,
        context=MeasuredContext(
            usual=614, smallest=610, largest=616, software="torch 2.8 to 2.10, CUDA 12.6/12.8, drivers 535 to 580",
            source="published.json nvidia_smi_overhead-0 to -42: nvidia-smi right after the process group's init",
        ),
        communicators=(
            MeasuredCommunicator(
                ranks=8, usual=896, smallest=892, largest=996, software="torch 2.8 to 2.10, CUDA 12.6/12.8",
                source=(
                    "published.json nvidia_smi_overhead-0 to -42: 1,506 to 1,512 MiB (two logs: 1,606) less the bare "
                    "context"
                ),
            ),
        ),
    ),
    GpuRecord(
        name="H100-NVL-94GB", model="H100", arch="sm_90", total_bytes=parse_bytes("93.00GiB"),
        provenance="out-of-memory message of H100 NVL in ali-vilab/VACE#56, torch 2.x", multiprocessors=132,
        product="NVIDIA H100 NVL", aliases=("H100", "H100-NVL"),
    ),
    GpuRecord(
        name="H800-SXM-80GB", model="H800", arch="sm_90", total_bytes=parse_bytes("79.10GiB"),
        provenance="as H100-SXM-80GB, from which it differs in NVLink; nvidia-smi says the same 81559 MiB",
        multiprocessors=132, product="NVIDIA H800", aliases=("H800",), usual=True,
    ),
    GpuRecord(
        name="H800-PCIE-80GB", model="H800", arch="sm_90", total_bytes=parse_bytes("81008MiB"),
        provenance="as H100-PCIE-80GB, from which it differs in NVLink", multiprocessors=114,
        product="NVIDIA H800 PCIe", aliases=("H800",),
    ),
    GpuRecord(
        name="H20-SXM-96GB", model="H20", arch="sm_90", total_bytes=parse_bytes("95.00GiB"),
        provenance="a public run log of NVIDIA H20, 2026; get_device_properties in a public script 97285 MiB",
        multiprocessors=78, product="NVIDIA H20", aliases=("H20", "H20-96G", "H20-96GB"), usual=True,
    ),
    GpuRecord(
        name="H20-SXM-141GB", model="H20", arch="sm_90", total_bytes=parse_bytes("143156MiB"),
        provenance="as H200-SXM-141GB: nvidia-smi says the same 143771 MiB of NVIDIA H20-3e", multiprocessors=78,
        product="NVIDIA H20-3e", aliases=("H20", "H20-3e", "H20-141G", "H20-141GB"),
    ),
    GpuRecord(
        name="H200-SXM-141GB", model="H200", arch="sm_90", total_bytes=parse_bytes("143156MiB"),
        provenance=(
            "get_device_properties of NVIDIA H200 in a public script, 139.80 GiB in many out-of-memory messages; once "
            "139.72 GiB"
        ),
        multiprocessors=132, product="NVIDIA H200", aliases=("H200",),
        context=MeasuredContext(
            usual=520, smallest=520, largest=520, software="torch 2.10.0, CUDA 12.8, driver 570.172.08",
            source="published.json nvidia_smi_overhead-36: one log",
        ),
        communicators=(
            MeasuredCommunicator(
                ranks=8, usual=984, smallest=984, largest=984, software="torch 2.10.0, CUDA 12.8",
                source="published.json nvidia_smi_overhead-36: 1,504 MiB less the bare context, one log",
            ),
        ),
    ),
    GpuRecord(
        name="B200-SXM-180GB", model="B200", arch="sm_100", total_bytes=parse_bytes("182631MiB"),
        provenance=(
            "get_device_properties of NVIDIA B200 in a public run log; 178.35 GiB in pytorch/ao#4002 and many "
            "out-of-memory messages"
        ),
        multiprocessors=148, product="NVIDIA B200", aliases=("B200",),
    ),
    GpuRecord(
        name="B300-SXM-288GB", model="B300", arch="sm_103", total_bytes=parse_bytes("267.69GiB"),
        provenance="out-of-memory messages of NVIDIA B300 SXM6 AC (275040 MiB in nvidia-smi) in three public run logs",
        multiprocessors=148, product="NVIDIA B300 SXM6 AC", aliases=("B300",),
    ),
    GpuRecord(
        name="MI210-64GB", model="MI210", arch="gfx90a", total_bytes=parse_bytes("65520MiB"),
        provenance="as MI250X-64GB: as much HBM2e with ECC", multiprocessors=104,
        aliases=("AMD-Instinct-MI210", "MI210"),
    ),
    GpuRecord(
        name="MI250X-64GB", model="MI250X", arch="gfx90a", total_bytes=parse_bytes("65520MiB"),
        provenance=(
            "get_device_properties of AMD Instinct MI250X (gfx90a:sramecc+:xnack-) in a public README, 63.98 GiB in "
            "many out-of-memory messages of ROCm builds"
        ),
        multiprocessors=110, aliases=("AMD-Instinct-MI250X", "MI250X", "AMD-Instinct-MI250X-MI250"),
        note="MI250X: for torch each half of a module is a GPU, of 64 GB; count those.",
    ),
    GpuRecord(
        name="MI300X-192GB", model="MI300X", arch="gfx942", total_bytes=parse_bytes("196592MiB"),
        provenance=(
            "get_device_properties of AMD Instinct MI300X (gfx942:sramecc+:xnack-) in public run logs, ROCm builds of "
            "torch 2.3 and later; virtual functions 191.69 GiB"
        ),
        multiprocessors=304, aliases=("MI300X", "AMD-Instinct-MI300X-OAM"),
    ),
    GpuRecord(
        name="MI325X-256GB", model="MI325X", arch="gfx942", total_bytes=parse_bytes("255.98GiB"),
        provenance="out-of-memory messages of AMD Instinct MI325X in two public run logs", multiprocessors=304,
        aliases=("AMD-Instinct-MI325X-OAM", "MI325X"),
    ),
    GpuRecord(
        name="GB10-128GB", model="GB10", arch="sm_121", total_bytes=parse_bytes("119.61GiB"),
        provenance=(
            "out-of-memory messages of NVIDIA GB10 (DGX Spark and its siblings), torch 2.x; others up to 121.69 GiB "
            "(vllm-project/vllm#56824: 121.7 GiB, driver 580.173.02)"
        ),
        multiprocessors=48, product="NVIDIA GB10", aliases=("GB10", "DGX-Spark"), pool=_SPARK,
    ),
    GpuRecord(
        name="GH200-96GB", model="GH200", arch="sm_90", total_bytes=parse_bytes("94.50GiB"),
        provenance="out-of-memory message of NVIDIA GH200 480GB in vllm-project/vllm#9630, torch 2.4, driver 550.107",
        multiprocessors=132, product="NVIDIA GH200 480GB", aliases=("GH200",), usual=True, note=_GRACE,
    ),
    GpuRecord(
        name="GH200-144GB", model="GH200", arch="sm_90", total_bytes=parse_bytes("142.50GiB"),
        provenance="free memory on startup of a GH200 in vllm-project/vllm#35313: 74.9/142.5 GiB",
        multiprocessors=132, product="NVIDIA GH200 144G HBM3e", aliases=("GH200",), note=_GRACE,
    ),
    GpuRecord(
        name="GB200-186GB", model="GB200", arch="sm_100", total_bytes=parse_bytes("184.31GiB"),
        provenance="out-of-memory messages of NVIDIA GB200 in five public run logs, torch 2.x, 2026",
        multiprocessors=152, product="NVIDIA GB200", aliases=("GB200",), note=_GRACE,
    ),
    GpuRecord(
        name="MI300A-128GB", model="MI300A", arch="gfx942", total_bytes=parse_bytes("96GiB"),
        provenance=(
            "what HIP's allocator gives of the 128 GiB unless the amdttm module is told otherwise (ROCm's guide to "
            "tuning MI300A systems, ROCm/legacy-rocm-build#3587)"
        ),
        multiprocessors=228, aliases=("MI300A",),
        pool=MemoryPool(
            total_bytes=129705412 * KIB, system_bytes=6 * GIB, floor_bytes=8 * GIB,
            source=(
                "rocminfo of MI300A in ROCm/rocm-examples#225 (others 131809016 KB, apptainer/apptainer#3261); "
                "what the system needs is that of a GB10"
            ),
        ),
        note=(
            "MI300A: 96 GiB for the device hold for the usual settings; with amdttm.pages_limit raised, write "
            "cluster.gpu: {name: MI300A-128GB, total_bytes: ..., arch: gfx942}."
        ),
    ),
)  # fmt: skip
