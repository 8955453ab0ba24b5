"""Published runs of other people's programs beside the programs on the paper GPU: reserved or allocated peaks.

    PYTHONPATH=. python benchmarks/published_programs/run_published.py --peft CLONE --torchtitan CLONE --litgpt DIR

Each option names a checkout (commits: docs/results/accuracy.md), for litgpt the folder that `--litgpt` fills with
checkpoints without values on its first use; without the option its rows are left out. `--litgpt-clone CLONE` adds the
QLoRA rows, by the litgpt, lightning and bitsandbytes of their days. The packages of
benchmarks/clients/requirements.txt are wanted. A row takes 15 to 100 processor seconds, hence outside CI.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.units import GIB

_HERE = Path(__file__).parent
TRUTH = Path(os.environ.get("PLANNER_TRUTH", _HERE.parents[2] / "shared" / "truth")) / "rows-2.json"
LONGEST = 699
"""Tokens of the longest sample of peft's runs: unknown, and chosen once for all by two rows (LoRA of rank 32 and
TinyLoRA), within two of what each would want."""
_PEFT_STEPS = 24
"""Twenty with samples of every length, so that what stays has its place; the longest is in the 21st, before which their
cache is emptied."""


@dataclass(frozen=True)
class Row:
    """A published figure and the program it is of; `rank` is the one whose figure was published."""

    name: str
    folder: Path
    command: str
    gpu: str
    published_bytes: int
    what: str = "reserved_bytes"
    ranks: str = "0"
    steps: int = 3


def peft_rows(clone: Path) -> Iterator[Row]:
    for row in json.loads(TRUTH.read_text(encoding="utf-8"))["peft"]["rows"]:
        command = f"python {_HERE / 'peft_method.py'} {clone} {row['name']} {LONGEST} {_PEFT_STEPS}"
        yield Row(row["name"], Path.cwd(), command, "L40S", row["reserved_max_bytes"], steps=_PEFT_STEPS)


def torchtitan_rows(clone: Path) -> Iterator[Row]:
    """DeepSeek at 8a749c61: fully recomputed, without expert parallelism and loss not compiled, as its log shows.

    The clone has to be at the commit of the row (`--only`), with a tokenizer in tests/assets/tokenizer, and its import
    of `create_cp_block_mask` taken out, which torch 2.13 has no more.
    """
    config = "torchtitan/models/{}/train_configs/{}.toml --training.dataset c4_test --metrics.log_freq 1"
    command = (
        f"env PYTHONPATH={Path(sys.prefix, 'beside', 'triton')} PYTORCH_ALLOC_CONF=expandable_segments:True "
        "torchrun --nnodes {} --nproc-per-node 8 -m torchtitan.train "
        "--model.hf_assets_path tests/assets/tokenizer --job.config_file " + config
    )
    deepseek = (
        command.format(1, "deepseek_v3", "deepseek_v3_16b") + " --parallelism.pipeline_parallel_degree 4 "
        "--parallelism.expert_parallel_degree 1 --activation_checkpoint.mode full --compile.no-enable"
    )
    llama = [command.format(nodes, "llama3", "llama3_8b") for nodes in (1, 8)]
    gpu = "H100-SXM-80GB"
    yield Row("deepseek_v3-16B, pp 4 x dp 2, rank 6", clone, deepseek, gpu, round(67.11 * GIB), ranks="0,2,4,6")
    yield Row("llama3-8B, FSDP2 over 8 (at d9bdfbb2)", clone, llama[0], gpu, round(47.82 * GIB))
    yield Row("llama3-8B, FSDP2 over 64 (at d9bdfbb2)", clone, llama[1], gpu, round(31.41 * GIB))


def litgpt_rows(folder: Path, clone: Path | None) -> Iterator[Row]:
    from litgpt_materials import CONFIGS, fill, of_its_day

    fill(folder)
    rows = json.loads(TRUTH.read_text(encoding="utf-8"))["litgpt"]
    for row in rows:
        if row["config"] not in CONFIGS:
            continue  # its optimizer's states alone are more than its figure: another optimizer than its config's
        checkpoint, before = CONFIGS[row["config"]], [Path()]
        if "qlora" in row["config"]:
            if clone is None:
                continue  # the installed litgpt trains another model than the row's
            checkpoint, before = of_its_day(folder, clone, row["config"])
        command = (
            f"env PYTHONPATH={':'.join(map(str, before))} "
            f"python -m litgpt finetune_lora {checkpoint} --precision bf16-true --lora_r 32 "
            f"--data JSON --data.json_path rows.json --data.val_split_fraction 0.1 --data.num_workers 0 "
            f"--train.global_batch_size 8 --train.micro_batch_size {row['micro_batch']} --train.max_seq_length 512"
        )
        command += " --quantize bnb.nf4" if "qlora" in row["config"] else ""
        published = round(row["peak_gb"] * 1e9)
        yield Row(f"litgpt, {row['config']}", folder, command, "A10G", published, "allocated_bytes")


def run(row: Row) -> int | None:
    """The peak on paper; None, with its last words on standard error, if it stopped."""
    options = ["--gpu", row.gpu, "--ranks", row.ranks, "--steps", str(row.steps), "--format", "json"]
    found = subprocess.run(
        [sys.executable, "-m", "planner", "run", *options, "--", *row.command.split()],
        cwd=row.folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(_HERE.parents[1])},
    )  # fmt: skip
    if not found.stdout:
        print(f"{row.name}: {found.stderr[-600:]}", file=sys.stderr)
        return None
    return int(json.loads(found.stdout)["rank_classes"][-1]["peak"][row.what])


def main() -> int:
    parser = argparse.ArgumentParser(description="Published runs beside their programs on paper")
    for name in ("peft", "torchtitan", "litgpt", "litgpt-clone"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    given = parser.parse_args()
    print("| program | published, GiB | on paper | error |\n|---|---:|---:|---:|")
    of_litgpt = functools.partial(litgpt_rows, clone=given.litgpt_clone and given.litgpt_clone.resolve())
    for folder, rows in ((given.peft, peft_rows), (given.torchtitan, torchtitan_rows), (given.litgpt, of_litgpt)):
        for row in rows(folder.resolve()) if folder else ():
            if given.only in row.name:
                peak = run(row)
                error = "stopped | " if peak is None else f"{peak / GIB:.2f} | {peak / row.published_bytes - 1:+.2%}"
                print(f"| {row.name} | {row.published_bytes / GIB:.2f} | {error} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
