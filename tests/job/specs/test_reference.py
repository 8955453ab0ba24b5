"""docs/reference/spec.md and the JSON Schema say what the schema says; run this file to write the tables anew."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from planner import cli
from planner.hardware import catalog
from planner.job import hf_config, short_forms, spec_keys
from planner.job.spec_keys import SpecKey, all_keys, is_optional, json_schema

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "reference" / "spec.md"
SPECS = sorted(REPOSITORY.glob("examples/**/*.yaml"))


def tables() -> str:
    """A table for each section, in Markdown."""
    keys = [key for key in all_keys() if not (key.section and key.parent == "")]
    sections: dict[str, list[SpecKey]] = {}
    for key in keys:
        sections.setdefault(key.parent, []).append(key)
    meanings = {key.path: key.meaning for key in all_keys()}
    parts = [_table(path, found, meanings.get(path, "")) for path, found in sections.items()]
    return "\n\n".join(parts)


def model_names() -> str:
    """The well-known models, in Markdown."""
    rows = [
        f"| `{each.name}` | {', '.join(f'`{name}`' for name in each.also)} | {each.source} |"
        for each in hf_config.models().values()
    ]
    return "\n".join(["| model | also for | sizes from, if not its own config.json |", "|---|---|---|", *rows])


def gpu_names() -> str:
    """The GPUs of the catalog, in Markdown."""
    rows = [
        f"| `{gpu.name}` | {', '.join(f'`{name}`' for name in dict.fromkeys((*gpu.aliases, gpu.product)) if name)} |"
        for gpu in catalog.gpus().values()
    ]
    return "\n".join(["| GPU | also called |", "|---|---|", *rows])


def _table(path: str, keys: list[SpecKey], meaning: str) -> str:
    rows = [
        f"| `{key.name if not key.path.endswith('.NAME') else 'any other key'}` | {_escaped(_value(key))} "
        f"| {_escaped(_default(key))} | {_escaped(key.meaning)} |"
        for key in keys
    ]
    head = f"### {path}\n\n{meaning}\n" if meaning else f"### {path}\n"
    return "\n".join([head, "| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _value(key: SpecKey) -> str:
    if key.section is not None:
        allowed = short_forms.find_form(key.section).allowed
        mapping = typing.get_origin(key.hint) is Mapping
        return "a mapping of names to mappings" if mapping else f"{allowed}; below"
    assert key.check is not None
    allowed = key.check.allowed
    if key.check.unit and not key.check.size:
        allowed = f"{allowed} ({key.check.unit})"
    if typing.get_origin(key.hint) is tuple:
        return f"a list, each {allowed}"
    return f"{allowed}; or null" if is_optional(key.hint) and "null" not in allowed else allowed


def _default(key: SpecKey) -> str:
    if key.required:
        return "required"
    if key.path == "software.torch":
        return "that of here"
    if key.section is not None or key.path.endswith(".NAME"):
        return "none" if key.default is None else ""
    if key.default is None or key.default in ("", (), {}):
        return "none"
    return f"`{json.dumps(key.default) if not isinstance(key.default, str) else key.default}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


BLOCKS = {"keys": tables, "models": model_names, "gpus": gpu_names}


def pattern_of(name: str) -> re.Pattern[str]:
    return re.compile(f"<!-- {name} -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_holds_what_the_schema_says(name: str) -> None:
    found = pattern_of(name).search(PAGE.read_text(encoding="utf-8"))

    assert found is not None
    assert found[1] == BLOCKS[name]() + "\n"


def test_every_key_has_a_meaning_in_one_sentence_or_a_few_words() -> None:
    assert [key.path for key in spec_keys.all_keys() if not key.meaning] == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_the_json_schema_takes_every_example(spec: Path) -> None:
    document = yaml.safe_load(spec.read_text(encoding="utf-8"))

    jsonschema.validate(document, json_schema())


def small(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": {"hf_config": "Qwen/Qwen3-8B"},
        "train": {"sequence_length": "4k"},
        "cluster": {"gpu": "H100"},
    }
    return {**document, **changes}


def test_the_json_schema_takes_short_forms() -> None:
    jsonschema.validate(small(), json_schema())
    jsonschema.validate(small(parallel={"tp": 8, "dp_shard": {"degree": 2}}), json_schema())
    jsonschema.validate(small(cluster={"gpu": None}), json_schema())


@pytest.mark.parametrize(
    "document",
    [
        small(trian={}),
        small(train={"micro_batch_size": "four"}),
        small(train={"micro_batch_size": 0}),
        small(train={"precision": "bf16"}),
        small(train={"sequence_length": "4K tokens"}),
        small(cluster={"nodes": 1}),
        small(parallel={"tp": "all"}),
        small(model={"adapter": {"r": 1.5}}),
    ],
)
def test_the_json_schema_refuses_what_the_reader_refuses(document: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_the_command_prints_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spec", "--json-schema"]) == 0

    assert json.loads(capsys.readouterr().out) == json_schema()


def write() -> None:
    """Puts the tables of today into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in BLOCKS.items():
        block = f"<!-- {name} -->\n{made()}\n<!-- end -->"
        text = pattern_of(name).sub(lambda _, block=block: block, text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
