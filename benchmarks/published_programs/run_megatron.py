"""SimuMax's runs of Megatron-LM on eight B200 beside `pretrain_gpt.py` on the paper GPU, rank by rank.

    PYTHONPATH=. python benchmarks/published_programs/run_megatron.py --megatron CLONE --simumax CLONE [--ranks all]

Megatron-LM at 23e00ed0, its helpers for data built (`make -C megatron/core/datasets`, with pybind11), SimuMax at any
commit that has its `pretrain_gpt.py`. transformer-engine 2.11.0 (--no-deps), onnx, onnxscript, einops and triton
have to be installed. Arguments are those of its launch script, with the fused cross entropy that its notes name and
the names of its cases end in (`cef`). A rank takes 7 to 15 processor seconds, hence outside CI.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.units import MIB

_ROOT = Path(__file__).parents[2]
_KERNELS = _ROOT / "benchmarks/fused_gradients.py"
TRUTH = Path(os.environ.get("PLANNER_TRUTH", _ROOT.parent / "shared" / "truth")) / "published.json"
_SIZES = {"llama3-70b": (8192, 28672, 64, 8), "llama3-405b": (16384, 53248, 128, 16)}
"""Hidden size, that of the feed-forward, heads, groups of heads."""
_MICRO_BATCHES = 4
_ARGUMENTS = """
--max-position-embeddings {rows} --seq-length {rows} --num-layers {layers} --hidden-size {hidden}
--ffn-hidden-size {ffn} --num-attention-heads {heads} --group-query-attention --num-query-groups {groups}
--norm-epsilon 1e-5 --attention-dropout 0.0 --hidden-dropout 0.0 --disable-bias-linear --position-embedding-type rope
--no-position-embedding --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --vocab-size 128256
--disable-tp-comm-bulk-wgrad --disable-tp-comm-bulk-dgrad --disable-tp-comm-overlap-rs --disable-tp-comm-overlap-ag
--disable-tp-comm-split-ag --disable-tp-comm-split-rs --seed 42 --micro-batch-size 1 --global-batch-size {batch}
--init-method-std 0.008 --use-mcore-models --no-bias-dropout-fusion --use-distributed-optimizer --use-flash-attn
--sequence-parallel --recompute-granularity full --recompute-method block --recompute-num-layers 0
--distributed-backend nccl --mock-data --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0
--initial-loss-scale 65536 --min-loss-scale 1.0 --train-iters 3 --lr-warmup-iters 1 --lr 2.4e-4
--lr-decay-style cosine --min-lr 1e-6 --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --bf16
--attention-softmax-in-fp32 --no-masked-softmax-fusion --accumulate-allreduce-grads-in-fp32
--tokenizer-type NullTokenizer --split 1 --no-create-attention-mask-in-dataloader --log-interval 1 --log-throughput
--save-interval 200000 --eval-interval 1000 --eval-iters 0 --transformer-impl transformer_engine
--cross-entropy-loss-fusion --cross-entropy-fusion-impl te
"""


@dataclass(frozen=True)
class Degrees:
    """Of tensor, pipeline and context parallelism."""

    tp: int
    pp: int
    cp: int

    @classmethod
    def of(cls, parallel: str) -> Degrees:
        """As the published rows have them: `tp2cp4pp1`."""
        found = {axis: int(parallel.partition(axis)[2][:1]) if axis in parallel else 1 for axis in ("tp", "pp", "cp")}
        return cls(**found)


def published() -> Iterator[dict[str, Any]]:
    """The dense rows."""
    content = json.loads(TRUTH.read_text(encoding="utf-8"))
    rows = content if isinstance(content, list) else next(each for each in content.values() if isinstance(each, list))
    return (each for each in rows if each.get("id", "").startswith("simumax_b200") and each["model"] in _SIZES)


def arguments(row: dict[str, Any], degrees: Degrees) -> str:
    hidden, ffn, heads, groups = _SIZES[row["model"]]
    text = _ARGUMENTS.format(
        rows=32768 if "seq32768" in row["case"] else 4096, layers=row["config"]["layer_num"], hidden=hidden, ffn=ffn,
        heads=heads, groups=groups, tp=degrees.tp, pp=degrees.pp,
        batch=_MICRO_BATCHES * 8 // (degrees.tp * degrees.pp * degrees.cp),
    )  # fmt: skip
    return text + (f"--context-parallel-size {degrees.cp} --cp-comm-type a2a" if degrees.cp > 1 else "")


def run(row: dict[str, Any], megatron: Path, simumax: Path, ranks: str) -> dict[str, Any] | None:
    """The plan of the program; None, with its last words on standard error, if it stopped."""
    program = simumax / "simu_tools" / "megatron_scripts" / "pretrain_gpt.py"
    own = arguments(row, Degrees.of(row["config"]["parallel"])).split()
    words = ["torchrun", "--nproc-per-node", "8", str(program), *own]
    options = [
        "--gpu",
        "B200-SXM-180GB",
        "--torch",
        "2.10",
        "--kernels",
        str(_KERNELS),
        "--ranks",
        ranks,
        "--format",
        "json",
    ]
    environment = {"PYTHONPATH": f"{_ROOT}:{megatron}", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PLANNER_PYTHON": "here"}
    found = subprocess.run(
        [sys.executable, "-m", "planner", "run", *options, "--steps", "3", "--", *words],
        capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    if not found.stdout:
        print(f"{row['case']}: {found.stderr[-600:]}", file=sys.stderr)
        return None
    return dict(json.loads(found.stdout))


def members(ranks: str) -> Iterator[int]:
    for part in ranks.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Megatron-LM's published runs beside its program on paper")
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--simumax", type=Path, required=True)
    parser.add_argument("--ranks", default="all")
    parser.add_argument("--only", default="", help="rows whose case has this in it")
    given = parser.parse_args()
    print("| case | rank | allocated, MiB | published | error | reserved, MiB | published | error |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in published():
        if given.only not in row["case"]:
            continue
        plan = run(row, given.megatron.resolve(), given.simumax.resolve(), given.ranks)
        for found in plan["rank_classes"] if plan else ():
            for rank in members(found["ranks"]):
                print(f"| {row['case']} | {rank} |{_beside(found['peak'], row['per_rank'][str(rank)])}", flush=True)
    return 0


def _beside(peak: dict[str, int], real: dict[str, float]) -> str:
    """Published over predicted, less one, as docs/results/accuracy.md has errors."""
    text = ""
    for name in ("allocated", "reserved"):
        predicted, measured = peak[f"{name}_bytes"] / MIB, real[f"max_{name}_mb"]
        text += f" {predicted:,.2f} | {measured:,.2f} | {measured / predicted - 1:+.3%} |"
    return text


if __name__ == "__main__":
    sys.exit(main())
