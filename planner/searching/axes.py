"""The axes of a search and their values, and changes of a job as dotted keys of the spec."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError, SpecError
from planner.hardware import catalog
from planner.job import consistency, spec_keys
from planner.job.consistency import with_scope
from planner.job.foreign_words import find_optimizer
from planner.job.layout import AXES as DEGREES
from planner.job.loading import job_on_gpu, read_gpu
from planner.job.nodes import Node, did_you_mean
from planner.job.schema import Adapter, Job, Optimizer, Recompute
from planner.job.trainer import ARGUMENTS, DEEPSPEED
from planner.job.yaml_text import read_yaml

Change = Mapping[str, Any]
"""Dotted key -> new value; None takes an argument of the optimizer away."""

_NOWHERE = Node({}, "", "")


def apply(job: Job, change: Change) -> Job:
    """The job with the change made; whether it makes sense, :func:`fault_of` says. Raises SpecError for a GPU that
    nobody knows, KeyError for a key that a job does not have."""
    for path, value in change.items():
        job = job_on_gpu(job, value) if path == "cluster.gpu" else _put(job, path.split("."), value)
    return with_scope(job)


def fault_of(job: Job) -> PlannerError | None:
    """What the rules of a spec say against the job; None if nothing."""
    try:
        consistency.check(job, _NOWHERE)
    except PlannerError as error:
        return error
    return None


def only_new(job: Job, change: Change) -> dict[str, Any]:
    """Those of the keys whose value the job does not have yet."""
    return {path: value for path, value in change.items() if value_at(job, path) != value}


def value_at(job: Job, path: str) -> Any:
    """What the job says at a dotted key, as a spec writes it."""
    if path == "cluster.gpu":
        return job.cluster.gpu.written
    value: Any = job
    for key in path.split("."):
        if spec_keys.is_argument(value, key):
            value = value.arguments
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    if isinstance(value, Recompute):
        return {"every": value.every} if value.mode == "every" else value.mode
    return list(value) if isinstance(value, tuple) else value


def _put(value: Any, keys: list[str], new: Any) -> Any:
    if not keys:
        return _built(value, new)
    first, *rest = keys
    if spec_keys.is_argument(value, first):
        return dataclasses.replace(value, arguments=_put(value.arguments, keys, new))
    if isinstance(value, Mapping):
        left = {key: kept for key, kept in value.items() if key != first}
        return left if new is None and not rest else {**left, first: _put(value.get(first, {}), rest, new)}
    if not hasattr(value, first):
        raise KeyError(first)
    return dataclasses.replace(value, **{first: _put(getattr(value, first), rest, new)})


def _built(old: Any, new: Any) -> Any:
    """The value of a field out of what a spec writes."""
    if isinstance(old, Recompute):
        return Recompute(mode="every", every=new["every"]) if isinstance(new, dict) else Recompute(mode=new)
    if isinstance(old, Optimizer):
        return Optimizer(name=new["name"], arguments={key: argument for key, argument in new.items() if key != "name"})
    if isinstance(new, dict) and {"kind", "r"} <= new.keys():
        keys: dict[str, Any] = {key: tuple(field) if isinstance(field, list) else field for key, field in new.items()}
        return Adapter(**keys)
    return tuple(new) if isinstance(old, tuple) else new


MOST_VALUES = 10_000
"""Of one axis: more than anybody plans, and few enough to be listed."""
_RANGE = re.compile(r"(\d{1,12}k?)\.\.(\d{1,12}k?)(?::(\d{1,12}k?|x2))?")
_COUNT = re.compile(r"(\d{1,12})(k?)")


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that differs between candidates."""

    name: str
    values: tuple[Change, ...]
    labels: tuple[str, ...]
    """How people see each of the values."""


_PATHS = {
    "micro_batch_size": "train.micro_batch_size",
    "sequence_length": "train.sequence_length",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "recompute": "train.recompute",
    "precision": "train.precision",
    "reshard_after_forward": "parallel.dp_shard.reshard_after_forward",
    "sequence_parallel": "parallel.tp.sequence_parallel",
    "schedule": "parallel.pp.schedule",
    "offload": "parallel.dp_shard.offload",
    "activation_offload": "train.activation_offload",
    "bucket_view": "parallel.dp_replicate.gradient_as_bucket_view",
    "loss_chunks": "train.loss.chunks",
    "parameter_dtype": "model.parameter_dtype",
    "zero": f"{DEEPSPEED}.zero_optimization.stage",
    "gpu": "cluster.gpu",
    "allocator": "allocator.conf",
    **{axis: f"parallel.{axis}.degree" for axis in DEGREES},
}
"""Names whose values are those of one key."""
NAMES = (*_PATHS, "optimizer", "lora")
_ALIASES = {"batch": "micro_batch_size", "mbs": "micro_batch_size", "seq": "sequence_length",
            "accumulation": "gradient_accumulation_steps", "accumulate": "gradient_accumulation_steps",
            "sp": "sequence_parallel", "fsdp": "dp_shard", "ddp": "dp_replicate",
            "gradient_checkpointing": "recompute"}  # fmt: skip


def known_name(written: str) -> str:
    """The axis that a word means: one of NAMES, or a dotted key of the spec. Raises SpecError with the nearest one."""
    name = _ALIASES.get(written, written)
    if name in NAMES:
        return name
    by_path = {path: known for known, path in _PATHS.items()}
    if name in by_path:
        return by_path[name]
    key = spec_keys.by_path().get(name)
    if key is not None and key.check is not None and not spec_keys.takes_a_mapping(key):
        return name
    if name.startswith(f"{ARGUMENTS}."):  # whether there is such a key, TrainingArguments says
        return name
    places = [by_path.get(path, path) for path in spec_keys.places_of(name)]
    remedy = f"write {places[0]}" if places else did_you_mean(name, (*NAMES, *_ALIASES))
    raise SpecError(
        f"there is no axis {written[:80]!a}",
        allowed=f"{', '.join(NAMES)}; or a dotted key of the spec",
        remedy=remedy or "docs/search.md says what each of them is",
    )


DOUBLING = "x2"


def parse(written: str, step: str = DOUBLING) -> Axis:
    """The axis of `name=values`: `1,2,4`, `1..64:x2` (doubling), `1..64:4` (in steps of 4); `1..64` is in the step that
    is given. Raises SpecError."""
    word, equals, text = written.partition("=")
    if not equals or not text.strip():
        raise SpecError(
            f"{written[:80]!a} is not axis=values",
            allowed="micro_batch_size=1..64, =1..64:4 (in steps of 4), =1..64:x2 (doubling), =1,2,3",
            remedy=f"write {word or 'micro_batch_size'}=1,2,4",
        )
    name = known_name(word.strip())
    place = written[:80]
    values: list[Any] = []
    for part in split_values(text):
        values += _values(name, part.strip(), step, place)
        if len(values) > MOST_VALUES:
            raise SpecError(
                f"{place} has more than {MOST_VALUES} values",
                allowed=f"at most {MOST_VALUES}",
                remedy=_LARGER,
            )
    return axis_of(name, list(dict.fromkeys(values)), place)


def split_values(text: str) -> list[str]:
    """What stands between commas, those in braces aside."""
    values, start = [], 0
    for match in re.finditer(r"\{[^{}]*\}|,", text):
        if match[0] == ",":
            values.append(text[start : match.start()])
            start = match.end()
    return [*values, text[start:]]


def axis_of(name: str, values: list[Any], place: str = "") -> Axis:
    """The axis with these values as a person or a spec writes them. Raises SpecError for one that cannot be."""
    make = _MAKERS.get(name) or (lambda value, place: _plain(name, value, place))
    labels = (
        "none" if value == "" else str(value).lower() if isinstance(value, bool) else str(value) for value in values
    )
    return Axis(name, tuple(make(value, place) for value in values), tuple(labels))


def path_of(name: str) -> str:
    """The key behind a name, of a spec without `trainer`."""
    return _PATHS.get(name, name)


def _values(name: str, text: str, step: str, place: str) -> list[Any]:
    if match := _RANGE.fullmatch(text):
        return _range(match[1], match[2], match[3] or step, place=place)
    if _COUNT.fullmatch(text):
        return [_count(text)]
    if not text:
        raise SpecError(f"{place} has an empty value", allowed="values between the commas", remedy="delete the comma")
    if name == "gpu" and text == "all":
        every = [*catalog.gpus().values(), *(part for parts in catalog.slices().values() for part in parts)]
        return [gpu.name for gpu in sorted(every, key=lambda gpu: (gpu.total_bytes, gpu.multiprocessors, gpu.name))]
    if name in ("optimizer", "gpu", "lora", "allocator"):
        return [text]
    value = read_yaml(text, place).plain()
    return [str(value) if isinstance(value, dict | list) else value]


_LARGER = "take larger steps: 2k..64k:2k, or 2k..64k:x2 to double"


def _range(first: str, last: str, step: str, *, place: str) -> list[int]:
    low, high = _count(first), _count(last)
    if low > high:
        raise SpecError(f"{place} begins behind its end", allowed="the smaller number first", remedy="turn it around")
    if step != DOUBLING:
        by = _count(step)
        if not by or (high - low) // by > MOST_VALUES:
            raise SpecError(
                f"{place} has no end" if not by else f"{place} has {(high - low) // by + 1} values",
                allowed=f"steps of at least 1, at most {MOST_VALUES} of them",
                remedy=_LARGER,
            )
        return list(range(low, high + 1, by))
    if not low:
        raise SpecError(f"{place} doubles from 0", allowed="a range from 1", remedy="begin at 1, or say a step: 0..8:2")
    return [low << doublings for doublings in range((high // low).bit_length())]


def _count(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def _plain(name: str, value: Any, place: str) -> Change:
    path = path_of(name)
    known = spec_keys.by_path().get(path)
    check = known.check if known is not None else None
    if known is not None and check is not None and not _accepted(check.accepts, value, known.default):
        raise SpecError(f"{name} cannot be {value!a}", allowed=check.allowed, remedy="write one of these", place=place)
    return {path: value}


def _accepted(accepts: Callable[[Any], bool], value: Any, default: Any) -> bool:
    """The checks are written for values of a field's own type."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int) and (not isinstance(value, int) or isinstance(value, bool)):
        return False
    if isinstance(default, str) and not isinstance(value, str):
        return False
    try:
        return accepts(value)
    except TypeError:
        return False


def _recompute(value: Any, place: str) -> Change:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return {"train.recompute": {"every": value}}
    if value not in ("none", "full", "selective"):
        raise SpecError(
            f"recompute cannot be {value!a}", allowed="none, full, selective, or 2 for every second block",
            remedy="write one of these", place=place,
        )  # fmt: skip
    return {"train.recompute": value}


def _optimizer(value: Any, place: str) -> Change:
    """A name, or `fused`, or `in_backward`."""
    if value == "fused":
        return {"train.optimizer.fused": True, "train.optimizer.foreach": None}
    if value == "in_backward":
        return {"train.optimizer_in_backward": True}
    known = find_optimizer(str(value)) or {"name": str(value)}
    return _plain("train.optimizer", dict(known), place)


def _lora(value: Any, place: str) -> Change:
    if value in (0, "0", "none"):
        return {"model.adapter": None}
    if not str(value).isdecimal():
        raise SpecError(f"lora cannot be {value!a}", allowed="ranks (8,16), 0 for none", place=place)
    return {"model.adapter": {"kind": "lora", "r": int(value)}}


def _one_of(name: str, is_one: Callable[[Any], bool], allowed: str) -> Callable[[Any, str], Change]:
    def make(value: Any, place: str) -> Change:
        if not is_one(value):
            raise SpecError(f"{name} cannot be {value!a}", allowed=allowed, place=place)
        return {_PATHS[name]: value}

    return make


_CONFS = {"default": "", "expandable": "expandable_segments:True"}
_MAKERS: Mapping[str, Callable[[Any, str], Change]] = {
    "recompute": _recompute,
    "reshard_after_forward": _one_of(
        "reshard_after_forward", lambda value: isinstance(value, bool | int), "true, false, a number"
    ),
    "gpu": lambda value, place: {"cluster.gpu": read_gpu(str(value), place).written},
    "offload": lambda value, place: _plain("offload", {False: "", "none": ""}.get(value, value), place),
    "allocator": lambda value, _: {"allocator.conf": _CONFS.get(str(value), str(value))},
    "optimizer": _optimizer,
    "lora": _lora,
    "zero": _one_of("zero", lambda value: value in (0, 1, 2, 3), "stages 0 to 3"),
}
