"""Keys and values as other programs write them, and what a spec says instead: for the errors of unknown ones.

foreign_words.json has those of transformers, accelerate, DeepSpeed, torchtitan, Megatron, Lightning, Axolotl,
LLaMA-Factory, PEFT, and what people say: letters of either case, dashes as underscores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from planner.job import schema, spec_keys
from planner.job.json_text import packaged_json
from planner.job.nodes import Node

_LONGEST_VALUE = 60
_PROGRAM = "plan a program of your own: planner spec --program JOB prints the one to start from, planner run plans it"


@cache
def _words(table: str) -> Mapping[str, Any]:
    """`gone`: what to do instead of a key that specs had once, by its path; PROGRAM where a program says it. `keys`:
    what a spec writes, with VALUE where the value can be carried over, and an example where it cannot, as when it is
    not a whole `number` though both are. `values`: of a section's key, remedies by value. `optimizers`: to
    `train.optimizer`; adamw_bnb_8bit is not there: transformers' Trainer keeps the state of embeddings in 32 bits, and
    others do not."""
    content = packaged_json("foreign_words.json")
    return {name: meaning for names, meaning in content[table].items() for name in names.split()}


def find_optimizer(name: str) -> dict[str, Any] | None:
    """`train.optimizer` for transformers' `optim` or what people say, in letters of either case."""
    return _words("optimizers").get(name.casefold())


def is_gone(path: str) -> bool:
    """Whether specs had this key once."""
    return path in _words("gone")


def key_remedy(path: str, child: Node, known: Iterable[str]) -> str:
    """What to write instead of an unknown key: of one that specs had once, of another program's, or of one of another
    section; empty if it is none of them."""
    if (gone := _words("gone").get(path)) is not None:
        return str(gone).replace("PROGRAM", _PROGRAM)
    key = path.rpartition(".")[2]
    folded = key.casefold().replace("-", "_")
    if folded in {name.casefold() for name in known}:
        return ""  # only its letters are of another case
    is_short = not isinstance(child.value, dict | list) and len(child.summary) <= _LONGEST_VALUE
    is_identifier = isinstance(child.value, str) and child.value.isidentifier()
    shown = "" if not is_short else str(child.value) if is_identifier else child.summary
    if (word := _words("keys").get(folded)) is not None and len(key) <= 100:
        if isinstance(word, str):
            return f"write {word}"
        is_carried = type(child.value) in ((int,) if word.get("number", True) else (str, int, float))
        value = shown if is_carried and shown else word["example"]
        return f"write {word['written'].replace('VALUE', value)}"
    places = sorted(spec_keys.places_of(folded), key=lambda path: path.count("."))
    if not places or (len(places) > 1 and places[0].count(".") == places[1].count(".")):
        return ""
    *sections, name = places[0].split(".")
    inner = f"{name}: {shown or '...'}"
    for section in reversed(sections[1:]):
        inner = f"{section}: {{{inner}}}"
    return f"it goes elsewhere: {sections[0]}: {{{inner}}}" if sections else f"{name} stands at the top of a spec"


def value_remedy(kind: type, name: str, value: object) -> str:
    """What to write instead of a value that another program would take; empty if none is known to."""
    folded = str(value).casefold()
    if (kind, name) == (schema.Optimizer, "name") and (meant := find_optimizer(folded)) is not None:
        arguments = "".join(f", {key}: {str(value).lower()}" for key, value in meant.items() if key != "name")
        return f"write {{name: {meant['name']}{arguments}}}" if arguments else f"write {meant['name']}"
    remedies: Mapping[str, str] = _words("values").get(f"{kind.__name__}.{name}", {})
    return next((remedy for values, remedy in remedies.items() if folded in values.split()), "")
