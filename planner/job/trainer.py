"""A spec's `trainer`: files of transformers, accelerate, DeepSpeed and PEFT as they are.

What their keys mean, the classes say that own them (planner.programs.trainer): here they are only brought together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import hf_config
from planner.job.json_text import file_text, read_json
from planner.job.nodes import Node
from planner.job.schema import Job, Parallel, Train, Trainer
from planner.job.yaml_text import read_yaml

_ALLOWED_IN_TRAIN = ("sequence_length", "inputs", "padding")
"""What a batch has; all else of `train` is said in `trainer.arguments`."""
_WHERE = "trainer.arguments, the file of accelerate or that of DeepSpeed"
FILES = ("trainer.arguments", "trainer.accelerate", "trainer.peft")
"""Keys that may name a file, which may name further ones."""
ARGUMENTS = FILES[0]
MICRO_BATCH, ACCUMULATION = f"{ARGUMENTS}.per_device_train_batch_size", f"{ARGUMENTS}.gradient_accumulation_steps"
RECOMPUTE, DEEPSPEED = f"{ARGUMENTS}.gradient_checkpointing", f"{ARGUMENTS}.deepspeed"
KEYS = {
    "train.micro_batch_size": MICRO_BATCH,
    "train.gradient_accumulation_steps": ACCUMULATION,
    "train.recompute": RECOMPUTE,
}
"""By the keys of a spec without `trainer`."""
_CHECKPOINTED = {"none": False, "full": True}
_USUAL_MICRO_BATCH = 8
"""Of TrainingArguments (transformers 5.23, training_args.py)."""
_USUAL_STEPS = {"eval_steps": 500, "save_steps": 500}
"""Of TrainingArguments (transformers 5.23, training_args.py; the first is that of logging_steps)."""
_WITH_THE_SAME_SAMPLES = ("tp", "cp", "sp")
"""Axes of accelerate's `parallelism_config` whose ranks share their samples (1.15, parallelism_config.py)."""
_REPLICATING = ("NO", "MULTI_GPU", "MULTI_CPU")
"""Values of accelerate's `distributed_type` with which every rank has the whole model."""


def uses_deepspeed(job: Job) -> bool:
    """Whether the program of a job trains by DeepSpeed's engine."""
    files = job.trainer or Trainer()
    by_accelerate = files.accelerate.get("distributed_type") == "DEEPSPEED"
    return bool(files.arguments.get("deepspeed") or by_accelerate)


def evaluates_or_saves_within(job: Job, iterations: int) -> bool:
    """Whether a run of so many first iterations of the job may see an evaluation or a checkpoint."""
    said = (job.trainer or Trainer()).arguments
    strategies = {"eval_steps": said.get("eval_strategy", "no"), "save_steps": said.get("save_strategy", "steps")}
    counts = [said.get(name) or _USUAL_STEPS[name] for name, strategy in strategies.items() if strategy != "no"]
    if counts and "max_steps" in said:
        counts.append(said["max_steps"])  # after the last one it saves
    return bool(said.get("eval_on_start")) or any(
        isinstance(count, int | float) and 0 < count <= iterations for count in counts
    )


def refuse_on_cpu(job: Job) -> None:
    """Raises SpecError for a job with `trainer` whose ranks share the model: on a CPU accelerate 1.15 replicates it."""
    files = job.trainer or Trainer()
    shares = any(files.arguments.get(name) for name in ("deepspeed", "fsdp"))
    is_whole = files.accelerate.get("distributed_type", "NO") in _REPLICATING
    if shares or not is_whole or files.accelerate.get("parallelism_config"):
        raise SpecError(
            "the Trainer shares the model among its ranks on GPUs alone",
            allowed="on a CPU: one rank, or ranks that each have the whole model",
            remedy="measure it on a GPU",
            place="trainer",
        )


def in_its_words(path: str, value: Any) -> tuple[str, Any]:
    """The key and value of its files for those of a spec without `trainer`; unchanged where there are none."""
    if path not in KEYS or (path == "train.recompute" and value not in _CHECKPOINTED):
        return path, value
    return KEYS[path], _CHECKPOINTED[value] if path == "train.recompute" else value


_PASSED_ON = ["gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"]
_ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}


def write_deepspeed_config(stage: int, *, offload: bool, own_optimizer: bool) -> dict[str, Any]:
    """A ds_config.json of this ZeRO stage; all else is as TrainingArguments say it."""
    zero = {"stage": stage, **({"offload_optimizer": {"device": "cpu"}} if offload else {})}
    return {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
        **({} if own_optimizer else {"optimizer": _ADAMW}),
        **dict.fromkeys(_PASSED_ON, "auto"),
    }


def micro_batch_size(job: Job) -> int:
    """Sequences that a rank takes at once."""
    return job.train.micro_batch_size if job.trainer is None else _count(job, MICRO_BATCH, _USUAL_MICRO_BATCH)


def accumulation_steps(job: Job) -> int:
    """Micro-batches of an optimizer step."""
    return job.train.gradient_accumulation_steps if job.trainer is None else _count(job, ACCUMULATION, 1)


def _count(job: Job, key: str, usual: int) -> int:
    assert job.trainer is not None
    value = job.trainer.arguments.get(key.removeprefix(f"{ARGUMENTS}."), usual)
    return value if type(value) is int and value > 0 else usual


def ranks_with_samples(job: Job) -> int:
    """Ranks of a job with `trainer` that take different samples."""
    assert job.trainer is not None
    ranks, config = job.cluster.ranks, job.trainer.accelerate.get("parallelism_config")
    sizes = config if isinstance(config, Mapping) else {}
    for axis in _WITH_THE_SAME_SAMPLES:
        degree = sizes.get(f"parallelism_config_{axis}_size", 1)
        ranks //= degree if type(degree) is int and degree > 0 else 1
    return max(ranks, 1)


def check_trainer(job: Job, document: Node) -> None:
    """Raises SpecError for keys of a spec with `trainer` that the files beside it decide."""
    document.refuse_if(job.model.hf_config is None, "trainer", "is only used with model.hf_config")
    adapter = job.model.adapter is not None
    document.refuse_if(adapter, "model.adapter", "stands beside trainer", remedy="write it in trainer.peft")
    for section, own, usual in (("train", job.train, Train()), ("parallel", job.parallel, Parallel())):
        for field in fields(own):
            if field.name in _ALLOWED_IN_TRAIN or getattr(own, field.name) == getattr(usual, field.name):
                continue
            raise document.fault(
                f"{section}.{field.name}",
                "stands beside trainer, whose files decide it",
                allowed=", ".join(f"train.{name}" for name in _ALLOWED_IN_TRAIN),
                remedy=f"write it in {_WHERE}, in their words",
            )


_FILES: Sequence[tuple[str, ...]] = (
    ("deepspeed",),
    ("fsdp_config",),
    ("deepspeed_config", "deepspeed_config_file"),
)
"""Keys of TrainingArguments and of accelerate's config that may name a file."""


Check = Callable[[Path, Node], None]
"""Asked before a file is read; raises SpecError for one that may not be."""


def read_file(node: Node, folder: Path | None, check: Check = lambda _, __: None) -> Mapping[str, Any]:
    """The content of a file of JSON or YAML relative to `folder`, or as it stands in the spec, with that of files which
    it names. Raises SpecError for a file that is not there, or holds no mapping."""
    content = node.plain()
    if isinstance(node.value, str):
        path = hf_config.named_path(node, folder)
        path, folder = _in_folder(path), path.parent
        check(path, node)
        content = _read(path, node)
    if not isinstance(content, dict):
        raise node.is_error(allowed="the path of a JSON or YAML file of keys and values, or its content as a mapping")
    for *sections, last in _FILES:
        part: Any = content
        for section in sections:
            part = part.get(section)
            part = part if isinstance(part, dict) else {}
        if isinstance(named := part.get(last), str) and named.endswith(".json"):
            if folder is None:
                raise node.error(f"names the file {named}", remedy="write its content in its place")
            check(folder / named, node)
            part[last] = _read(folder / named, node)
    return content


def _in_folder(path: Path) -> Path:
    """A folder of an adapter stands for the file in it."""
    return path / "adapter_config.json" if os.path.isdir(path) else path


def _read(path: Path, node: Node) -> Any:
    text = file_text(path, str(path), node.place)
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_yaml(text, str(path)).plain()
    content = read_json(text, str(path))
    if not isinstance(content, dict):
        raise SpecError("the file must hold a JSON object", allowed="one mapping of keys to values", place=str(path))
    return content
