"""Reads job specs and bundles into the dataclasses of a job, and writes bundles and the identity of a trace."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from planner.errors import SpecError, shorten
from planner.hardware import catalog
from planner.job import consistency, foreign_words, hf_config, named_gpus, short_forms, trainer
from planner.job.field_checks import Check
from planner.job.json_text import canonical_json, file_text, read_json, without_floats
from planner.job.nodes import Node, below, did_you_mean, node_from_data
from planner.job.schema import CHECKS, Compile, Gpu, Job, Model, Trainer
from planner.job.size_limits import LARGEST_YAML, LONGEST_NAME
from planner.job.spec_keys import OPEN, is_optional, section_in
from planner.job.yaml_text import read_yaml
from planner.units import parse_bytes

_THOUSANDS = re.compile(r"([1-9][0-9]{0,8})[kK]")
"""`4k` tokens are 4096 wherever people write so of sequences."""
_READERS = {
    (Model, "hf_config"): hf_config.read,
    (Trainer, "arguments"): trainer.read_file,
    (Trainer, "accelerate"): trainer.read_file,
    (Trainer, "peft"): trainer.read_file,
}
"""What reads values that may be the path of a file."""


def read_dataclass(kind: type, node: Node, folder: Path | None) -> Any:
    """The dataclass that a mapping, or one of its short forms, describes; SpecError at the first fault.

    `folder` is where relative paths start; None for a spec that may refer to nothing outside.
    """
    written = short_forms.written_out(kind, node).mapping(short_forms.find_form(kind).allowed)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    passed_on = written["arguments"].mapping() if kind in OPEN and "arguments" in written else {}
    gone = {key: child for key, child in passed_on.items() if foreign_words.is_gone(below(node.path, key))}
    for key, child in {**written, **gone}.items():
        if key not in fields or key in gone:
            known = [OPEN[kind] if kind in OPEN and name == "arguments" else name for name in fields]
            raise SpecError(
                f"unknown key `{shorten(key, LONGEST_NAME)}` in {node.path or 'a job spec'}",
                allowed=", ".join(known),
                remedy=foreign_words.key_remedy(below(node.path, key), child, fields) or did_you_mean(key, fields),
                place=child.key_place or child.place,
            )
    hints = _hints(kind)
    values = {}
    for name, field in fields.items():
        if name in written:
            values[name] = _read_field(kind, name, hints[name], written[name], folder)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            section = section_in(hints[name])
            form = None if section is None else short_forms.find_form(section)
            allowed = _allowed(kind, name, hints[name]) if form is None else form.allowed
            raise SpecError(f"{below(node.path, name)} is missing", allowed=allowed, place=node.place)
    return kind(**values)


def _read_field(kind: type, name: str, hint: Any, node: Node, folder: Path | None) -> Any:
    if (kind, name) in _READERS:
        return _READERS[kind, name](node, folder)
    section = section_in(hint)
    if typing.get_origin(hint) is Mapping:
        if section is None:
            return {key: child.plain() for key, child in node.mapping().items()}
        # In the order of the names, so that a job is the same whichever way its document was sorted.
        children = sorted(node.mapping("a mapping of names to inputs").items())
        return {key: read_dataclass(section, child, folder) for key, child in children}
    if section is not None:
        is_left_out = (node.value is None or node.value is False) and is_optional(hint)
        return None if is_left_out else read_dataclass(section, node, folder)
    check = CHECKS[kind, name]
    if typing.get_origin(hint) is tuple:
        if not isinstance(node.value, list):
            raise node.is_error(allowed=_allowed(kind, name, hint))
        return tuple(_read_value(kind, name, typing.get_args(hint)[0], item, check) for item in node.value)
    return _read_value(kind, name, hint, node, check)


def _allowed(kind: type, name: str, hint: Any) -> str:
    return ("a list, each " if typing.get_origin(hint) is tuple else "") + CHECKS[kind, name].allowed


def _read_value(kind: type, name: str, hint: Any, node: Node, check: Check) -> Any:
    if check.size:
        remedy = "the units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB"
        try:
            size = parse_bytes(node.value)  # type: ignore[arg-type]  # it refuses what is neither text nor whole number
        except ValueError:
            is_negative = str(node.value).lstrip().startswith("-")
            raise node.is_error(allowed=check.allowed, remedy="" if is_negative else remedy) from None
        if not check.accepts(size):
            shows_units = bool(node.written) and not str(node.value).lstrip().startswith("-")
            raise node.is_error(allowed=check.allowed, remedy=remedy if shows_units else "")
        return size
    value: Any = node.value
    if check.tokens and (tokens := _THOUSANDS.fullmatch(str(value))) is not None:
        value = 1024 * int(tokens[1])
    elif hint is str and node.written:
        value = node.written  # `torch: 2.10` means the text, not the number 2.1
    # Exactly one of the hinted types: true is not a whole number here, but a whole number is a number.
    kinds = (int, float) if hint is float else typing.get_args(hint) or (hint,)
    if type(value) not in kinds or not check.accepts(value):
        known = foreign_words.value_remedy(kind, name, value)
        raise node.is_error(allowed=check.allowed, remedy=known or _remedy(value, hint, check))
    return float(value) if hint is float else value


def _remedy(value: Any, hint: Any, check: Check) -> str:
    if isinstance(value, str):
        if check.names:
            return did_you_mean(value, check.names)
        if hint is bool and value.lower() in ("yes", "on", "y"):
            return "write true"
        if hint is bool and value.lower() in ("no", "off", "n"):
            return "write false"
    is_whole = type(value) is float and value.is_integer()
    is_digits = isinstance(value, str) and value.isdecimal() and len(value) <= LONGEST_NAME
    return f"write {int(value)}" if hint is int and (is_whole or is_digits) else ""


BUNDLE_SCHEMA = "planner.bundle/1"
_GONE: Mapping[str, Any] = {
    "parallel.deepspeed": None,
    "software.step": "torch",
    "post_training": None,
    "train.compile.autograd": False,
    "train.compile.planned_as": "compiled",
    "model.use_cache": False,
    "train.empty_cache_every": 0,
    "train.retains": "",
    "train.loss.chunk_head": False,
    "train.loss.keep_output": False,
    "train.checkpoint_load.keep_reference": False,
    "train.checkpoint_load.broadcast_from_rank0": False,
    "train.checkpoint_save.pinned": False,
    "train.checkpoint_load.mmap": False,
    "train.data_loader": {"workers": 0, "pin_memory": False, "dataset_bytes": 0},
    "parallel.tp.plan": {},
    "model.adapter.load": "layers",
    "model.adapter.upcast": True,
    "parallel.dp_replicate.kind": "ddp",
    "parallel.dp_replicate.comm_hook": "",
    "parallel.dp_shard.prefetch": 0,
    "train.eval.batches": 1,
    "train.eval.gather": "",
    "train.eval.accumulation_steps": 0,
    "train.eval.generate": None,
    **{
        f"parallel.dp_shard.{key}": usual
        for key, usual in {
            "kind": "fsdp2", "no_shard": False, "use_orig_params": False, "backward_prefetch": "BACKWARD_PRE",
            "forward_prefetch": False, "limit_all_gathers": True, "sync_module_states": False, "autocast": False,
            "wrap": "blocks", "wrap_size": 0, "wrap_trained": False,
        }.items()
    },
}  # fmt: skip
"""Keys that bundles had once, where they say what is done now."""


def load_job(path: Path) -> Job:
    """The job of a file: a spec in YAML, or a bundle in JSON as `planner spec --bundle` prints it.

    Raises SpecError with file, line and column for whatever is wrong.
    """
    return load_node(*document_of(file_text(path, str(path)), str(path), path.parent))


def document_of(text: str, source: str, folder: Path | None) -> tuple[Node, Path | None]:
    """What a spec or a bundle says, before it is read as a job, and where its relative paths start: at `folder`, for a
    bundle nowhere, and without a folder there may be none. Raises SpecError with the place in `source`."""
    is_json = source.endswith(".json")
    if is_json or text.lstrip().startswith("{"):
        try:
            data = read_json(text, source)
        except SpecError:
            if is_json:
                raise
            data = None  # a YAML mapping in braces, or broken: the YAML reader says where
        if isinstance(data, dict) and "schema" in data:
            return _parts_of_bundle(data, source), None
    return read_yaml(text, source), folder


def load_bundle(document: Mapping[str, Any], source: str = "the bundle") -> Job:
    """The job of a bundle that is parsed already; nothing outside of it is read. Raises SpecError."""
    return load_node(_parts_of_bundle(document, source), None)


def _parts_of_bundle(document: Mapping[str, Any], source: str) -> Node:
    if document.get("schema") != BUNDLE_SCHEMA:
        raise SpecError(f"the schema is {document.get('schema')!r}", allowed=BUNDLE_SCHEMA, place=source)
    parts = {key: value for key, value in document.items() if key != "schema"}
    for path, usual in _GONE.items():
        *sections, key = path.split(".")
        section: Any = parts
        for name in sections:
            section = section.get(name) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping) and key in section and section[key] == usual:
            parts = _without(parts, [*sections, key])
    return node_from_data(parts, source)


def _without(parts: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The mapping without the key at this path."""
    first, *rest = path
    if not rest:
        return {key: value for key, value in parts.items() if key != first}
    return {**parts, first: _without(parts[first], rest)}


def load_document(document: Mapping[str, Any], source: str = "the spec") -> Job:
    """The job of a spec that is parsed already and refers to nothing outside. Raises SpecError."""
    return load_node(node_from_data(document, source), None)


def load_yaml(text: str, source: str = "the spec") -> Job:
    """The job of a spec in YAML that refers to nothing outside. Raises SpecError with line and column."""
    if len(text) > LARGEST_YAML:
        raise SpecError(
            f"the spec has {len(text)} characters of YAML", allowed=f"at most {LARGEST_YAML}; or a bundle", place=source
        )
    return load_node(read_yaml(text, source), None)


def load_node(document: Node, folder: Path | None) -> Job:
    """The job of a spec that somebody put together; relative paths start at `folder`. Raises SpecError at the nodes'
    own places."""
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    job = cast(Job, read_dataclass(Job, document, folder))
    cluster = document.nearest_to("cluster")
    if "gpu" not in cluster.mapping() or cluster is document:
        raise SpecError(
            "cluster.gpu is missing",
            allowed=", ".join(catalog.names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
            place=cluster.place,
        )
    consistency.check(job, document)
    job = consistency.with_scope(job)
    if not job.model.factory or folder is None:
        return job
    path = (folder / job.model.factory_path).resolve()  # a bundle carries the folder that was meant
    if not path.is_dir():
        node = document.nearest_to("model.factory_path")
        raise node.error(
            f"is {node.summary}, and there is no such folder", allowed="a folder with the factory's module"
        )
    return replace(job, model=replace(job.model, factory_path=str(path)))


def list_choices(document: Node, folder: Path | None) -> list[str]:
    """What a spec leaves open and its reader decided, for people."""
    config = document.nearest_to("model.hf_config")
    taken = hf_config.describe_mirror(config.value, folder) if config.path == "model.hf_config" else []
    node = document.nearest_to("cluster.gpu.name")
    is_named = isinstance(node.value, str) and node.path in ("cluster.gpu", "cluster.gpu.name")
    choice = named_gpus.tell_choice(str(node.value)) if is_named else ""
    return [*taken, choice] if choice else taken


def read_gpu(written: str | Mapping[str, Any], place: str) -> Gpu:
    """The GPU of a name, or of its figures, where no spec says it: an option, a request's key. Raises SpecError."""
    node = node_from_data(written, place, "cluster.gpu")
    gpu = cast(Gpu, read_dataclass(Gpu, node, None))
    consistency.check_gpu(gpu, node)
    return gpu


def job_on_gpu(job: Job, written: str | Mapping[str, Any], *, place: str = "") -> Job:
    """The same job on another GPU. Raises SpecError as :func:`read_gpu` does."""
    return replace(job, cluster=replace(job.cluster, gpu=read_gpu(written, place)))


def document(job: Job) -> dict[str, Any]:
    """The job as the mapping that a spec would hold if it said everything; loads again to the same job."""
    return cast(dict[str, Any], _plain(job, Job))


def bundle(job: Job) -> dict[str, Any]:
    """The job as one self-contained JSON object, schema planner.bundle/1."""
    return {"schema": BUNDLE_SCHEMA, **cast(dict[str, Any], without_floats(document(job)))}


def bundle_text(job: Job) -> str:
    """The bundle as it is printed."""
    return json.dumps(bundle(job), indent=2, allow_nan=False) + "\n"


def _plain(value: Any, hint: Any) -> Any:
    if value is None and hint == Compile | None:
        return False  # as people write it, and as it was before there was more to say
    if value is None or (hint is not float and isinstance(value, str | int)):
        return value
    if isinstance(value, Gpu) and value == Gpu():
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {name: _plain(getattr(value, name), hint) for name, hint in _hints(type(value)).items()}
        passed_on = plain.pop("arguments") if type(value) in OPEN else {}
        return {**plain, **passed_on}
    if isinstance(value, Mapping):
        return {key: _plain(item, None) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, None) for item in value]
    return float(value) if hint is float else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


_ADDED: Mapping[str, Any] = {
    "trainer": None,
    "cluster.host_memory": 0,
    "cluster.gpu_fraction": 1.0,
    "cluster.gpu_memory": 0,
    "train.checkpoint_save": None,
    "train.checkpoint_load.kind": "state_dict",
    "train.checkpoint_load.optimizer": False,
    "train.lengths": None,
}
"""Keys that came later, and what was done before a spec could say something else: where they say this, the identity is
what it was, for answers that are stored."""


def trace_id(job: Job, software: Mapping[str, str]) -> str:
    """What a trace is stored under: the SHA-256 of the bundle without metadata and of the software that traces it.

    `software` names the versions of planner, torch and transformers.
    """
    parts = {key: value for key, value in bundle(job).items() if key != "metadata"}
    for path, usual in _ADDED.items():
        *sections, last = path.split(".")
        part: Any = parts
        for section in sections:
            part = part[section] if isinstance(part, dict) else None
        if isinstance(part, dict) and part[last] == usual:
            del part[last]
    identity = canonical_json({"bundle": parts, "software": dict(software)})
    return hashlib.sha256(identity.encode("ascii")).hexdigest()
