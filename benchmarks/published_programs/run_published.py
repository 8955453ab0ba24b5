"""Published runs of other people's programs beside the programs on the paper GPU: reserved or allocated peaks.

    PYTHONPATH=. python benchmarks/published_programs/run_published.py --peft CLONE --torchtitan CLONE --litgpt DIR

Each option names a checkout (commits: docs/results/accuracy.md), for litgpt the folder that `--litgpt` fills with
checkpoints without values on its first use; without the option its rows are left out. `--litgpt-clone CLONE` adds the
QLoRA rows, by the litgpt, lightning and bitsandbytes of their days. `--fms DIR` runs the QLoRA rows of
fms-acceleration: the folder is filled with the environments of their days (8 GB) and models without values. The
packages of benchmarks/clients/requirements.txt are wanted. A row takes 15 to 100 processor seconds, hence outside CI.
"""

from __future__ import annotations

import argparse
import csv
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
_TRUTH = Path(os.environ.get("PLANNER_TRUTH", _HERE.parents[2] / "shared" / "truth"))
TRUTH, FMS = _TRUTH / "rows-2.json", _TRUTH / "rows-5" / "fms_acceleration.tsv"
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
    environment: Path | None = None
    """The folder of the row's own Python and launchers."""


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


def fms_rows(folder: Path) -> Iterator[Row]:
    """QLoRA by bitsandbytes whose figure is known, without the fused kernels of fms-acceleration."""
    from qlora_materials import ACCELERATE, make_environment, make_model

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fsdp.yaml").write_text(ACCELERATE, encoding="utf-8")
    with FMS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        kind, peak = row["framework_config"], row["mem_peak_torch_mem_alloc_in_bytes"]
        if kind not in ("baseline-peft-bnb", "accelerated-peft-bnb") or not peak:
            continue
        environment = make_environment(folder, Path(row["file"]).name)
        model = make_model(environment, folder, row["model_name_or_path"])
        gpus, batch = row["num_gpus"], row["per_device_train_batch_size"]
        launch = "python" if gpus == "1" else f"accelerate launch --config_file fsdp.yaml --num_processes {gpus}"
        command = f"{launch} {_HERE / 'qlora_sft.py'} {kind.partition('-')[0]} {batch} {model}"
        name = f"{row['model_name_or_path']}, {kind}, {gpus} x {batch}"
        yield Row(
            name, folder, command, "A100-SXM-80GB", int(peak), "allocated_bytes", steps=5, environment=environment
        )


def run(row: Row) -> int | None:
    """The peak on paper; None, with its last words on standard error, if it stopped."""
    options = ["--gpu", row.gpu, "--ranks", row.ranks, "--steps", str(row.steps)]
    options += ["--with", "flash-attn"] if row.environment else []
    path = f"{row.environment}:{os.environ['PATH']}" if row.environment else os.environ["PATH"]
    found = subprocess.run(
        [sys.executable, "-m", "planner", "run", *options, "--format", "json", "--", *row.command.split()],
        cwd=row.folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(_HERE.parents[1]), "PATH": path},
    )  # fmt: skip
    if not found.stdout:
        print(f"{row.name}: {found.stderr[-600:]}", file=sys.stderr)
        return None
    return int(json.loads(found.stdout)["rank_classes"][-1]["peak"][row.what])


def main() -> int:
    parser = argparse.ArgumentParser(description="Published runs beside their programs on paper")
    for name in ("peft", "torchtitan", "litgpt", "litgpt-clone", "fms"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    given = parser.parse_args()
    print("| program | published, GiB | on paper | error |\n|---|---:|---:|---:|")
    of_litgpt = functools.partial(litgpt_rows, clone=given.litgpt_clone and given.litgpt_clone.resolve())
    families = (
        (given.peft, peft_rows),
        (given.torchtitan, torchtitan_rows),
        (given.litgpt, of_litgpt),
        (given.fms, fms_rows),
    )
    for folder, rows in families:
        for row in rows(folder.resolve()) if folder else ():
            if given.only in row.name:
                peak = run(row)
                error = "stopped | " if peak is None else f"{peak / GIB:.2f} | {peak / row.published_bytes - 1:+.2%}"
                print(f"| {row.name} | {row.published_bytes / GIB:.2f} | {error} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
