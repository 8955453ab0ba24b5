"""Keys of other tools' files: what becomes of each (key_tables.json), and a file's values, read and checked by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers.drafts import Draft, contradiction
from planner.job.json_text import packaged_json
from planner.job.nodes import Node, did_you_mean, node_from_data

_KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "flag": ("true or false", (bool,)),
    "whole": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "text": ("a text", (str,)),
    "mapping": ("a mapping", (dict,)),
    "any": ("a value", ()),
}
"""In words, and the types of such values."""
_NEAR = 0.8
"""How alike a known name has to be to be meant, of 1: a choice; `per_device_batch_size` and the name it stands for are
0.87, `chars_per_token` and `hub_token` 0.67."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a foreign file. One that decides nothing changes no tensor on the device while it trains."""

    to: str = ""
    """The keys of the spec that it decides."""
    kind: str = "any"
    """flag | whole | number | text | mapping | any"""
    default: Any = None
    """What its own program takes where nothing is written."""
    only: tuple[Any, ...] = ()
    """It matters, and is understood with these values alone, the first of which is the default."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """As `only`, each with what a spec has for it."""
    why: str = ""
    """Why it is refused with others, or what else is to be known."""
    supposed: str = ""
    """What is planned in the place of what it asks for, unless it is empty, zero or false."""

    @property
    def matters(self) -> bool:
        return bool(self.to or self.only or self.supposed)

    def check(self, name: str, node: Node) -> None:
        """Raises SpecError for a value of another type, or one that is not understood."""
        parts = node.value if isinstance(node.value, list) and node.value else [node]
        if self.only and not all(any(_is_same(part, value) for value in self.only) for part in parts):
            remedy = "take it out to plan the job without it"
            if self.to:
                remedy = did_you_mean(str(node.value), self.only) or "write one of these"
            raise SpecError(
                f"{name} is {node.summary}: {self.why}",
                allowed=", ".join(map(_format_plain, self.only)),
                remedy=remedy,
                place=node.place,
            )
        in_words, types = _KINDS[self.kind]
        is_missing = node.value is None and bool(self.to) and self.default is not None
        if is_missing or (node.value is not None and types and type(node.value) not in types):
            remedy = "write it without quotes" if isinstance(node.value, str) else "delete it for the default"
            raise SpecError(f"{name} is {node.summary}", allowed=in_words, remedy=remedy, place=node.place)


def _is_same(node: Node, value: Any) -> bool:
    if node.value in ({}, []):
        return value == node.plain() or value is None
    return type(node.value) is type(value) and node.plain() == value


def _format_plain(value: Any) -> str:
    if value is None or value == "":
        return "null" if value is None else '""'
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """All keys that a program reads, by their names; `wandb_*` stands for every key that begins so."""

    program: str
    """Whose keys they are, for messages."""
    keys: Mapping[str, Key]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old names of keys by those of today."""
    handed_on: Mapping[str, str] = field(default_factory=dict)
    """Keys that the program hands to transformers' TrainingArguments as they are, with the names they have there."""

    def find(self, name: str) -> Key | None:
        """The key of that name, or of the beginning that it has."""
        if (key := self.keys.get(name)) is not None:
            return key
        beginnings = (pattern for pattern in self.keys if pattern.endswith("*") and name.startswith(pattern[:-1]))
        return next((self.keys[pattern] for pattern in beginnings), None)

    def read(
        self, written: Mapping[str, Node], folder: Path = Path(), *, source: str = "", prefix: str = ""
    ) -> WrittenKeys:
        """What a file says by the names of today, without a prefix that they may have there.

        Raises one SpecError for all keys that are unknown, of a wrong type or not understood, and for a key whose old
        name says something else than its new one. Null under an old name says nothing.
        """
        plain = {name.removeprefix(prefix): node for name, node in written.items()}
        nodes = {name: node for name, node in plain.items() if name not in self.renamed}
        for old, new in self.renamed.items():
            node, other = plain.get(old), nodes.get(new)
            if node is None or node.value is None:
                continue
            if other is not None and other.value is not None and other.plain() != node.plain():
                raise contradiction(f"{new} ({old}, its old name)", other, node)
            nodes[new] = node
        faults = []
        for name, node in nodes.items():
            try:
                self._known(name, node).check(name, node)
            except SpecError as fault:
                faults.append(fault)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            lines = "".join(f"\n    {fault.place}: {fault.problem} ({fault.remedy})" for fault in faults)
            raise SpecError(
                f"{len(faults)} keys cannot be planned as they are:{lines}",
                allowed=f"the keys of {self.program}, with the values of docs/reference/importers.md",
                remedy="change or delete these lines, all at once",
            )
        return WrittenKeys(self, nodes, folder, source or f"the defaults of {self.program}")

    def _known(self, name: str, node: Node) -> Key:
        if (key := self.find(name)) is not None:
            return key
        raise SpecError(
            f"unknown key `{name}`",
            allowed=f"the keys of {self.program}",
            remedy=did_you_mean(name, self.keys, likeness=_NEAR) or "delete it, or say what it decides in JOB.yaml",
            place=node.key_place or node.place,
        )


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """What a file says, checked; what it does not say has its program's default."""

    table: KeyTable
    nodes: dict[str, Node]
    folder: Path
    """Where paths that they name start."""
    source: str
    """The place of what it does not say."""

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __getitem__(self, name: str) -> Any:
        return self.nodes[name].plain() if name in self.nodes else self.table.keys[name].default

    def node(self, name: str) -> Node:
        """The value with its place."""
        default = self.table.keys[name].default
        return self.nodes.get(name) or node_from_data(default, self.source, name)

    def tell(self, draft: Draft, name: str, path: str, value: Any = None) -> None:
        """Puts a value into a draft as the key `path` of a spec: what is written, or else the default, which other
        sources may replace. `value` is what it comes to, where the spec writes it otherwise."""
        node = replace(self.node(name), path=path)
        if value is not None:
            node = node_from_data(value, node.place, path)
        if name in self:
            draft.say(path, node)
        else:
            draft.suppose(path, node.plain(), node.place)

    def is_error(self, name: str, *, allowed: str, remedy: str = "write one of these") -> SpecError:
        """The fault that a value is what it is."""
        return self.node(name).is_error(allowed=allowed, remedy=remedy)

    def only(self, names: Mapping[str, Any]) -> dict[str, Node]:
        """Those of some names."""
        return {name: node for name, node in self.nodes.items() if name in names}

    @property
    def mattering(self) -> dict[str, Node]:
        return {name: node for name, node in self.nodes.items() if self._key(name).matters}

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of what is written and does not matter to memory."""
        return tuple(name for name in self.nodes if not self._key(name).matters)

    @property
    def supposed(self) -> tuple[str, ...]:
        """What is planned in the place of what is written, each once."""
        supposed = (self._key(name).supposed for name, node in self.nodes.items() if node.value)
        return tuple(dict.fromkeys(filter(None, supposed)))

    def _key(self, name: str) -> Key:
        key = self.table.find(name)
        assert key is not None  # it was checked
        return key


@cache
def tables() -> Mapping[str, KeyTable]:
    """Every table by its name."""
    content = packaged_json("importers/key_tables.json")
    found: dict[str, KeyTable] = {}
    for name, part in content.items():
        handed_on = part.get("handed_on", {})
        keys = {key: found["TrainingArguments"].keys[theirs] for key, theirs in handed_on.items()}
        for names, fate in part["keys"].items():
            if isinstance(fate, str):  # as that of another table
                table, _, known = fate.partition(".")
                key = found[table].keys[known]
            else:
                only = tuple(fate.get("values") or fate.get("only", ()))
                default = fate.get("default", only[0] if only else None)
                key = Key(**{**fate, "only": only, "default": default})
            keys |= dict.fromkeys(names.split(), key)
        keys |= dict.fromkeys(_words(part.get("ignored", ())), Key())
        found[name] = KeyTable(program=part["program"], keys=keys, renamed=part.get("renamed", {}), handed_on=handed_on)
    return found


def _words(lines: Sequence[str]) -> list[str]:
    return " ".join(lines).split()


def table(name: str, *others: str) -> KeyTable:
    """That of a name; with others one of all their keys, of which the last that has a key counts."""
    parts = [tables()[each] for each in (name, *others)]
    keys = {key: fate for part in parts for key, fate in part.keys.items()}
    return replace(parts[0], keys=keys, renamed={old: new for part in parts for old, new in part.renamed.items()})
