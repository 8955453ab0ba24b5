"""A draft of a spec that several files fill: reads the files, and declares what becomes of each of their keys."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import hf_config
from planner.job.json_text import file_text, read_json
from planner.job.layout import AXES
from planner.job.nodes import Node, below, did_you_mean, node_from_data
from planner.job.shorthand import Setting, with_settings
from planner.job.yaml_text import read_yaml

_WHOLE = {
    "model.hf_config", "model.decoder", "model.factory_arguments", "model.adapter", "train.inputs", "train.loss",
    "train.optimizer", "train.recompute", "train.checkpoint_load", "train.eval", "parallel.deepspeed",
    "parallel.tp.plan", "cluster.gpu",
}  # fmt: skip
"""Mappings that are one value: who says a part of it says the whole."""


class Draft:
    """What is said of a job so far."""

    def __init__(self) -> None:
        self._said: dict[str, Node] = {}
        self._by_default: dict[str, Node] = {}
        self._overriding: list[Setting] = []
        self.supposed: list[str] = []
        """What nobody said, and what is taken for it."""

    def say(self, path: str, node: Node) -> None:
        """A value of the spec's key `path`. Raises SpecError if another place says another."""
        first = self._said.setdefault(path, node)
        if first.plain() != node.plain():
            raise contradiction(path, first, node)

    def say_value(self, path: str, value: Any, place: str) -> None:
        """As `say`, of plain data."""
        self.say(path, node_from_data(value, place, path))

    def suppose(self, path: str, value: Any, place: str) -> None:
        """What holds where nobody says anything else."""
        self._by_default[path] = node_from_data(value, place, path)

    def overlay(self, document: Node) -> None:
        """All that a spec says which need not be complete."""
        for path, node in _leaves(document):
            self.say(path, node)

    def read_config(self, node: Node, folder: Path) -> Mapping[str, Any] | None:
        """As `hf_config.read`."""
        self.supposed += hf_config.taken_for(node.value, folder)
        return hf_config.read(node, folder)

    def replace(self, path: str, value: Any, place: str) -> None:
        """The content of what a value names."""
        self._said[path] = node_from_data(value, place, path)

    def override(self, settings: Sequence[Setting]) -> None:
        """What a person sets, whatever the files say."""
        self._overriding += settings

    def get(self, path: str) -> Node | None:
        """What is set, said, or supposed."""
        settings = (setting.node for setting in reversed(self._overriding) if setting.path == path)
        return next(settings, None) or self._said.get(path) or self._by_default.get(path)

    def has(self, *paths: str) -> bool:
        """Whether one of the keys has a value."""
        return any(self.get(path) is not None for path in paths)

    def count(self, path: str) -> int:
        """A count, 1 where it is not said or no count: the reader of specs says what is wrong with it."""
        node = self.get(path)
        return node.value if node is not None and isinstance(node.value, int) and node.value > 0 else 1

    def document(self, source: str, folder: Path | None = None) -> Node:
        """All of it, as a spec that was read; what it refers to starts at `folder`."""
        tree: dict[str, Any] = {}
        for path, node in {**self._by_default, **self._said}.items():
            *parents, last = path.split(".")
            level = tree
            for parent in parents:
                level = level.setdefault(parent, {})
                if isinstance(level, Node):
                    raise level.is_error(allowed="a mapping", remedy=f"write what it holds, such as {last}")
            is_whole = node.path == path or not isinstance(node.value, dict | list)
            level[last] = replace(node, path=path) if is_whole else node_from_data(node.plain(), node.place, path)
        return with_settings(_mapping(tree, source, ""), self._overriding, folder)


def contradiction(name: str, first: Node, second: Node) -> SpecError:
    """Two places that say different things of one."""
    here, there = (
        str(node.plain())[:200] if isinstance(node.value, dict | list) else node.summary for node in (first, second)
    )
    return SpecError(
        f"{name} is {here} here, and {there} at {second.place}",
        allowed="one value, wherever it is said",
        remedy="make them the same, or delete one of them",
        place=first.place,
    )


def unite_drafts(first: Mapping[str, Node], second: Mapping[str, Node]) -> dict[str, Node]:
    """What both say. Raises SpecError where they say different things."""
    for name in first.keys() & second.keys():
        if first[name].plain() != second[name].plain():
            raise contradiction(name, first[name], second[name])
    return {**first, **second}


def _mapping(tree: Mapping[str, Any], source: str, path: str) -> Node:
    children = {
        key: value if isinstance(value, Node) else _mapping(value, source, below(path, key))
        for key, value in tree.items()
    }
    return Node(children, path, source, source)


def _leaves(node: Node) -> Iterator[tuple[str, Node]]:
    section, _, last = node.path.rpartition(".")
    if isinstance(node.value, dict) and node.path not in _WHOLE:
        for child in node.value.values():
            yield from _leaves(child)
    elif section == "parallel" and last in AXES:
        path = below(node.path, "degree")
        yield path, replace(node, path=path)
    elif node.path:
        yield node.path, node


_MOST_BYTES = 2**20


def read_yaml_file(path: Path, writer: str) -> Node:
    """The mapping in a YAML file. Raises SpecError; `writer` says in errors what makes such files."""
    return _require_mapping(read_yaml(_text(path, writer), str(path)), writer)


def read_json_file(path: Path, writer: str) -> Node:
    """The object in a JSON file, with lines and columns. Raises SpecError."""
    text, source = _text(path, writer), str(path)
    data = read_json(text, source)
    node = None
    with contextlib.suppress(SpecError):
        node = read_yaml(text, source)  # JSON is YAML in most cases, and this reader knows where each value stands
    if node is None or node.plain() != data:
        node = node_from_data(data, source)
    return _require_mapping(node, writer)


def named_by(node: Node, folder: Path) -> Path:
    """The regular file that a value names, links followed, within the folder. Raises SpecError."""
    written, root = str(node.value), folder.resolve()

    def fault(problem: str, remedy: str) -> SpecError:
        problem = f"{node.name} is {written[:200]!a}, {problem}"
        return SpecError(problem, allowed=f"a path within {folder}", remedy=remedy, place=node.place)

    if not written or "\0" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", written):
        raise fault("which is no file", "copy the file there")
    path = (root / written).resolve()
    if not path.is_relative_to(root):
        raise fault(f"which lies outside of {folder}", "copy it there, or give it by itself (--from-deepspeed)")
    if not path.is_file():
        remedy = (
            "copy it there (a relative path starts from the folder of the file that names it), or give it by itself"
        )
        remedy += " where it is DeepSpeed's (--from-deepspeed FILE)"
        raise fault(f"and there is no such file in {folder}", remedy)
    return folder / path.relative_to(root)


def _text(path: Path, writer: str) -> str:
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise SpecError(
            f"{path} is larger than 1 MiB",
            allowed=f"a file that {writer}: a few KiB",
            remedy="look whether this is the file you meant",
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise SpecError(f"{path} is no regular file", allowed=f"a file that {writer}")
    return file_text(path, str(path))


def _require_mapping(node: Node, writer: str) -> Node:
    if not isinstance(node.value, dict):
        raise SpecError(
            f"the file holds {node.summary}",
            allowed="one mapping of keys to values",
            remedy=f"give the file that {writer}",
            place=node.place,
        )
    return node


_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "flag": ("true or false", (bool,)),
    "whole": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "text": ("a text", (str,)),
    "mapping": ("a mapping", (dict,)),
    "any": ("a value", ()),
}
"""In words, and the types of such values."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a foreign file."""

    to: str = ""
    """The keys of the spec that it decides; empty: it decides none."""
    kind: str = "any"
    """flag | whole | number | text | mapping | any"""
    default: Any = None
    """What its own program takes where nothing is written."""
    only: tuple[Any, ...] = ()
    """It matters, and is understood with these values alone."""
    why: str = ""
    """Why it is refused with others, or what else is to be known."""
    supposed: str = ""
    """What is planned in the place of what it asks for, unless it is empty, zero or false."""

    @property
    def matters(self) -> bool:
        return bool(self.to or self.only or self.supposed)


def mapped_key(to: str, kind: str, default: Any = None, why: str = "") -> Key:
    """A key that the spec has too."""
    return Key(to, kind, default, (), why)


def fixed_key(values: tuple[Any, ...], why: str) -> Key:
    """A key that matters, and of which other values are refused; the first value is the default."""
    return Key("", "any", values[0], values, why)


def supposed_key(kind: str, default: Any, supposed: str) -> Key:
    """A key in whose place another thing is planned, which people are told."""
    return Key("", kind, default, (), "", supposed)


def fixed_keys(values: tuple[Any, ...], why: str, *names: str) -> dict[str, Key]:
    """Several that are refused for one reason."""
    return {name: fixed_key(values, why) for name in names}


def ignored_keys(*names: str) -> dict[str, Key]:
    """Keys that change no tensor on the device while it trains; `wandb_*` is every key that begins so."""
    return {name: Key() for name in names}


def key_of(known: Mapping[str, Key], name: str) -> Key | None:
    """The key of that name, or of the beginning that it has (`wandb_*`); None if there is none."""
    if (key := known.get(name)) is not None:
        return key
    beginnings = (pattern for pattern in known if pattern.endswith("*") and name.startswith(pattern[:-1]))
    return next((known[pattern] for pattern in beginnings), None)


_NEAR = 0.8
"""How alike a known name has to be to be meant, of 1: a choice; `per_device_batch_size` and the name it stands for are
0.87, `chars_per_token` and `hub_token` 0.67."""


def check(known: Mapping[str, Key], name: str, node: Node, program: str) -> Key:
    """The fate of a key that a file has. Raises SpecError if it is unknown or of another type, or not understood."""
    key = key_of(known, name)
    if key is None:
        raise SpecError(
            f"unknown key `{name}`",
            allowed=f"the keys of {program}",
            remedy=did_you_mean(name, known, likeness=_NEAR) or "delete it, or say what it decides in JOB.yaml",
            place=node.key_place or node.place,
        )
    parts = node.value if isinstance(node.value, list) and node.value else [node]
    if key.only and not all(any(_is_same(part, value) for value in key.only) for part in parts):
        raise SpecError(
            f"{name} is {node.summary}: {key.why}",
            allowed=", ".join(_format_plain(value) for value in key.only),
            remedy=(did_you_mean(str(node.value), key.only) or "write one of these")
            if key.to
            else "take it out to plan the job without it",
            place=node.place,
        )
    in_words, types = _KINDS[key.kind]
    is_missing = node.value is None and bool(key.to) and key.default is not None
    if is_missing or (node.value is not None and types and type(node.value) not in types):
        quoted = isinstance(node.value, str)
        raise SpecError(
            f"{name} is {node.summary}",
            allowed=in_words,
            remedy="write it without quotes" if quoted else "delete it for the default",
            place=node.place,
        )
    return key


Table = tuple[Mapping[str, Key], Mapping[str, Node], str]
"""The keys that there are, what is written, and whose keys they are."""


def check_tables(*tables: Table) -> None:
    """All that the parts of a file have. Raises one SpecError for all of them, as `check` does for each."""
    faults = []
    for known, written, program in tables:
        for name, node in written.items():
            try:
                check(known, name, node, program)
            except SpecError as fault:
                faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = "".join(f"\n    {fault.place}: {fault.problem} ({fault.remedy})" for fault in faults)
        programs = dict.fromkeys(program for *_, program in tables)
        raise SpecError(
            f"{len(faults)} keys cannot be planned as they are:{lines}",
            allowed=f"the keys of {', '.join(programs)}, with the values of docs/reference/importers.md",
            remedy="change or delete these lines, all at once",
        )


def check_all(known: Mapping[str, Key], written: Mapping[str, Node], program: str, prefix: str = "") -> dict[str, Node]:
    """All that a file has, without a prefix that it may have. Raises SpecError as `check_tables` does."""
    plain = {name.removeprefix(prefix): node for name, node in written.items()}
    check_tables((known, plain, program))
    return plain


def rename(written: Mapping[str, Node], renamed: Mapping[str, str]) -> dict[str, Node]:
    """What is written under the names that keys have today; null under an old name says nothing. Raises SpecError where
    both names are written and say different things."""
    today = {name: node for name, node in written.items() if name not in renamed}
    for old, new in renamed.items():
        node = written.get(old)
        if node is None or node.value is None:
            continue
        if (other := today.get(new)) is not None and other.value is not None and other.plain() != node.plain():
            raise contradiction(f"{new} ({old}, its old name)", other, node)
        today[new] = node
    return today


def value_of(known: Mapping[str, Key], written: Mapping[str, Node], name: str) -> Any:
    """What is written, or the default of the program."""
    return written[name].plain() if name in written else known[name].default


def _is_same(node: Node, value: Any) -> bool:
    if node.value in ({}, []):
        return value == node.plain() or value is None
    return type(node.value) is type(value) and node.plain() == value


def _format_plain(value: Any) -> str:
    if value is None or value == "":
        return "null" if value is None else '""'
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_supposed(known: Mapping[str, Key], written: Mapping[str, Node]) -> list[str]:
    """What is planned in the place of what is written, each once."""
    keys = ((key_of(known, name), node.value) for name, node in written.items())
    return list(dict.fromkeys(key.supposed for key, value in keys if key is not None and key.supposed and value))


def list_ignored(known: Mapping[str, Key], names: Iterable[str]) -> list[str]:
    """Those of the names that do not matter to memory, in their order."""
    return [name for name in names if (key := key_of(known, name)) is not None and not key.matters]
