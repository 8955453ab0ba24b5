"""`make step-times`: how long published steps took beside planner's model of them; docs/results/step-times.md.

    python benchmarks/step_times.py [--family NAME...] [--count N] [--page]

Steps of specs (tests/data/step_times/published.csv) are planned and kept in tests/data/step_times/planned.json; those
of programs come from tests/data/recorded_runs, where `make programs RECORD=yes` keeps them. `--page` plans nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "step_times"
RUNS = ROOT / "tests" / "data" / "recorded_runs"
PAGE = ROOT / "docs" / "results" / "step-times.md"
SEED, DRAWN = 29, 60
_MOST_TOKENS = 8192
"""Of a sequence of llm-foundry's rows that are drawn: longer ones take most of their time in a flash attention of 2022
in Triton (submit_benchmarks.py, `attn_impl`), slower than any that torch has."""
_APART = 1.05
"""Pairs of steps whose published rates differ by less say nothing about an order."""
_SOURCES = {
    "llm-foundry": "mosaicml/llm-foundry 8c8dd48f, scripts/train/benchmarking/README.md, rows in bfloat16 and amp_bf16",
    "simumax": "MooreThreads/SimuMax 4dcaae51, docs/b200/b200_release_v1.2_summary.json, dense models",
    "parameter-golf": "logs of openai/parameter-golf (4908dc46), `step_avg`",
    "megatron": "golden values of NVIDIA/Megatron-LM (d98e8a64), median iteration time",
}
FITTED = ("7b", "13b", "30b", "70b")
"""Models of llm-foundry by whose steps it was fitted how much slower products are within training than alone
(TRAINING_SHARES in planner/hardware/kernel_speeds.py): every second row of an architecture, in the order of names."""
_TRITON = f"llm-foundry's rows of more than {_MOST_TOKENS:,} tokens, whose attention no torch has"
_MIG = "programs whose folder says that they ran on MIG slices, of a size that nothing says"
# llm-foundry's models (scripts/train/yamls/pretrain): hidden size, heads, layers; 4 times as wide inside, no biases.
_MPT = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}  # fmt: skip
_LLAMA = {
    "llama3-70b": {"hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256},
    "llama3-405b": {"hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocab": 128256},
}


@dataclass(frozen=True, slots=True)
class Step:
    """A published step of a rank's job, and its time here; 0: it was not planned."""

    family: str
    row: str
    gpu: str
    gpus: int
    published_ms: float
    planned_ms: float = 0.0
    tokens: float = 0.0
    """Of a GPU; 0: not known."""
    other_ms: float = 0.0
    """By somebody else's model."""
    obstacle: str = ""
    """Why it is not drawn."""

    @property
    def error(self) -> float:
        """Relative."""
        return self.planned_ms / self.published_ms - 1


def read_published() -> Iterator[tuple[Step, dict[str, Any]]]:
    """Steps that a spec describes, with what is published of their settings."""
    with (DATA / "published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            config = json.loads(row["config"])
            accumulated = config.get("grad_accum", config.get("micro_batches", 1))
            parts = config.get("tp", 1) * config.get("pp", 1) * config.get("cp", 1)
            step = Step(
                row["family"], row["row"], row["gpu"], int(row["gpus"]), float(row["milliseconds"]),
                tokens=config["micro_batch_size"] * config["seq"] * accumulated / parts,
                other_ms=config.get("simumax_ms", 0.0),
                obstacle=_TRITON if row["family"] == "llm-foundry" and config["seq"] > _MOST_TOKENS else "",
            )  # fmt: skip
            yield step, config


def spec_of(step: Step, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The job of a published step; its model's config.json in the folder. torch is 2.6 for llm-foundry's, older than
    any that planner knows: like theirs it prefers FlashAttention-2."""
    nodes, per_node = max(step.gpus // 8, 1), min(step.gpus, 8)
    cluster = {"nodes": nodes, "gpus_per_node": per_node, "gpu": step.gpu}
    train: dict[str, Any] = {
        "micro_batch_size": config["micro_batch_size"], "sequence_length": config["seq"],
        "optimizer": {"name": "AdamW", "fused": step.family == "simumax"},
        "gradient_accumulation_steps": config.get("grad_accum", config.get("micro_batches")),
    }  # fmt: skip
    if step.family == "simumax":
        model: dict[str, Any] = {"decoder": {"layers": config["layers"], **_LLAMA[config["model"]]}}
        parallel: dict[str, Any] = {
            "tp": {"degree": config["tp"], "sequence_parallel": config["tp"] > 1}, "cp": config["cp"],
            "dp_shard": {"degree": config["dp"], "reshard_after_forward": False, "no_sync": True},
        }  # fmt: skip
        if config["pp"] > 1:
            parallel["pp"] = {"degree": config["pp"], "schedule": "1F1B"}
        is_sharded = config["dp"] * config["cp"] > 1
        train["precision"] = "fsdp_mixed" if is_sharded else "none"
        model["parameter_dtype"] = "float32" if is_sharded else "bfloat16"
        return {"model": model, "train": train, "parallel": parallel, "cluster": cluster}
    hidden, heads, layers = _MPT[config["model"].removeprefix("mpt-")]
    named = {
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": hidden, "vocab_size": 50368,
        "num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": 4 * hidden,
        "max_position_embeddings": config["seq"], "use_parallel_residual": False, "tie_word_embeddings": True,
        "attention_bias": False, "hidden_act": "gelu", "rotary_pct": 0.25,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(named), encoding="utf-8")
    train |= {
        "precision": "fsdp_mixed", "gradient_clipping": 1.0,
        "recompute": "full" if config["activation_checkpointing"] else "none",
    }  # fmt: skip
    sharded = {"degree": step.gpus, "reshard_after_forward": config["sharding"] == "FULL_SHARD"}
    return {
        "model": {"hf_config": "config.json"}, "train": train, "parallel": {"dp_shard": sharded}, "cluster": cluster,
        "software": {"torch": "2.6", "cuda": "12.4"},
    }  # fmt: skip


def plan(step: Step, config: Mapping[str, Any]) -> float:
    """Milliseconds of the slowest rank's step. Raises ValueError with what planner said instead."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(yaml.safe_dump(spec_of(step, config, Path(folder))), encoding="utf-8")
        command = [sys.executable, "-m", "planner", "plan", str(job), "--format", "json", "--no-advice"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if not ended.stdout:
        raise ValueError(ended.stderr)
    classes = json.loads(ended.stdout)["rank_classes"]
    return 1e3 * max(rank_class["step"]["seconds"] for rank_class in classes)


def read_programs() -> Iterator[Step]:
    """Steps of recorded programs, of those whose log has their time and whose GPU's speed is known."""
    for path in sorted(RUNS.glob("*.json")):
        for run in json.loads(path.read_text(encoding="utf-8")):
            if run.get("planned_step_seconds") and run.get("step_seconds"):
                published, planned = 1e3 * run["step_seconds"], 1e3 * run["planned_step_seconds"]
                obstacle = _MIG if "MIG" in run["title"] else ""
                yield Step(path.stem, run["run"], run["gpu"], run["ranks"], published, planned, obstacle=obstacle)


def read_all() -> list[Step]:
    """Every published step, with its time here where it was planned."""
    kept = DATA / "planned.json"
    planned: dict[str, float] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    specs = [replace(step, planned_ms=planned.get(f"{step.family}/{step.row}", 0.0)) for step, _ in read_published()]
    return [*specs, *read_programs()]


def fitted_on(steps: Sequence[Step]) -> list[Step]:
    """Those that the shares of A100 and H100 are fitted on: they say nothing of how well the model does."""
    found = []
    for gpu in ("A100", "H100"):
        rows = [step for step in steps if step.family == "llm-foundry" and step.planned_ms and not step.obstacle]
        rows = [step for step in rows if step.gpu.startswith(gpu) and step.row.split()[0] in FITTED]
        found += sorted(rows, key=lambda step: step.row)[::2]
    return found


def draw(steps: Sequence[Step]) -> list[Step]:
    """So many of all that were planned and that nothing is fitted on, the same for the same steps."""
    fitted = fitted_on(steps)
    planned = sorted(
        (step for step in steps if step.planned_ms and not step.obstacle and step not in fitted),
        key=lambda step: (step.family, step.row),
    )
    return sorted(
        random.Random(SEED).sample(planned, min(DRAWN, len(planned))), key=lambda step: (step.family, step.row)
    )


def ordered_pairs(steps: Sequence[Step]) -> tuple[int, int]:
    """Of pairs of one family on the same GPUs whose tokens a second differ: how many are ordered right, and how many
    there are. Only jobs of one model are compared, whose tokens cost the same."""
    groups: dict[tuple[str, str, int, str], list[Step]] = defaultdict(list)
    for step in steps:
        if step.planned_ms and step.tokens:
            model = step.row.split()[0] if step.family == "llm-foundry" else "_".join(step.row.split("_")[:2])
            groups[step.family, step.gpu, step.gpus, model].append(step)
    right = count = 0
    for group in groups.values():
        for one, other in combinations(group, 2):
            published = one.tokens / one.published_ms / (other.tokens / other.published_ms)
            if 1 / _APART < published < _APART:
                continue
            count += 1
            right += (one.tokens / one.planned_ms > other.tokens / other.planned_ms) == (published > 1)
    return right, count


_HEAD = """# How long steps take

Published times of training steps beside those of planner's model ([how](../how-it-works.md)), in milliseconds. Specs
stand for jobs of which only settings are published; programs ran unedited. Errors are signed: minus is too fast. What
GPUs reach is in `planner/hardware/kernel_speeds.py`, each figure with its source; two are fitted on steps of
llm-foundry's table (how much slower products of A100 and H100 are within training than alone): on every second row of
its models of 7B to 70B on each architecture, in the order of names, marked *, which are in a line of their own. Their
mean error is nearest 0 at 0.91 and 0.78; in use are 0.92, of an earlier fit that saw other rows too, and 0.78, and a
hundredth is at most 1 % of a step. At 0.91 and 0.78 the six other rows are 6.7 % too fast to 8.8 % too slow, in the
median 1.7 % off (`benchmarks/step_time_shares.py`). All other rules of the model were written with all rows
in sight. Generated by `make step-times`.

"""


def write_page(steps: Sequence[Step]) -> str:
    """The page of everything that is kept."""
    planned, drawn, fitted = (
        [step for step in steps if step.planned_ms and not step.obstacle],
        draw(steps),
        fitted_on(steps),
    )
    apart = [step for step in steps if step.planned_ms and step.obstacle]
    right, count = ordered_pairs(steps)
    lines = ["| what | steps | median error | signed | 9 of 10 within | worst |", "|---|---:|---:|---:|---:|---:|"]
    others = [step for step in planned if step not in fitted]
    lines.append(_summary(f"{len(drawn)} drawn of all but those marked * (seed {SEED})", drawn))
    lines.append(_summary("all of these that were planned", others))
    families = dict.fromkeys(step.family for step in planned)
    lines += [
        _summary(f"{family}: {_SOURCES.get(family, '')}", [step for step in others if step.family == family])
        for family in families
    ]
    lines.append(
        _summary(f"of llm-foundry's, {', '.join(FITTED)}", [step for step in others if step.row.split()[0] in FITTED])
    )
    lines.append(_summary("not in any line above: the rows that the two shares are fitted on, marked *", fitted))
    for obstacle in dict.fromkeys(step.obstacle for step in apart):
        of_it = [step for step in apart if step.obstacle == obstacle]
        lines.append(_summary(f"not in any line above: {obstacle}", of_it))
    beside = [step for step in planned if step.other_ms]
    if beside:
        theirs = [replace(step, planned_ms=step.other_ms) for step in beside]
        lines.append(_summary("SimuMax's own model, on the same rows", theirs))
    lines += [
        "", "Pairs of steps of one model on the same GPUs whose published rates differ by more than 5 %:"
        f" {right} of {count} ({100 * right / max(count, 1):.0f} %) are ordered right.", "",
    ]  # fmt: skip
    for family in families:
        lines += [
            f"## {family}",
            "",
            "| step | GPU | GPUs | published | here | error | SimuMax |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        lines += [_row(step, "*" * (step in fitted)) for step in (*planned, *apart) if step.family == family]
        missing = sum(step.family == family and not step.planned_ms for step in steps)
        lines += ["", *([f"{missing} more are published and were not planned.", ""] if missing else [])]
    return _HEAD + "\n".join(lines).rstrip() + "\n"


def _summary(what: str, steps: Sequence[Step]) -> str:
    errors = sorted(abs(step.error) for step in steps)
    signed = statistics.median(step.error for step in steps)
    ninth = errors[int(0.9 * (len(errors) - 1))]
    return (
        f"| {what} | {len(steps)} | {statistics.median(errors):.1%} | {signed:+.1%} | {ninth:.1%} | {errors[-1]:.1%} |"
    )


def _row(step: Step, mark: str) -> str:
    other = f"{step.other_ms / step.published_ms - 1:+.1%}" if step.other_ms else ""
    return (
        f"| {step.row}{mark} | {step.gpu} | {step.gpus} | {step.published_ms:,.1f} | {step.planned_ms:,.1f} |"
        f" {step.error:+.1%} | {other} |"
    )


def main() -> int:
    """0 if every step that was chosen was planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=["llm-foundry", "simumax"], default=["llm-foundry", "simumax"])
    parser.add_argument("--count", type=int, default=40, help="of each family, drawn (default: 40)")
    parser.add_argument("--page", action="store_true", help="plan nothing, write the page of what is kept")
    options = parser.parse_args()
    kept = DATA / "planned.json"
    planned: dict[str, float] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    failed = 0
    for family in () if options.page else options.family:
        steps = [pair for pair in read_published() if pair[0].family == family]
        for step, config in random.Random(SEED).sample(steps, min(options.count, len(steps))):
            try:
                milliseconds = plan(step, config)
            except ValueError as error:
                failed += 1
                print(f"{family}/{step.row}: {error}", file=sys.stderr)
                continue
            planned[f"{family}/{step.row}"] = round(milliseconds, 3)
            print(f"{family}/{step.row}: {step.published_ms:,.1f} ms, here {milliseconds:,.1f}", flush=True)
            kept.write_text(json.dumps(planned, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(read_all()), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
