"""No value of a job spec is read without a check."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from planner.job import schema
from planner.job.spec_keys import all_keys

SECTIONS = list(dict.fromkeys(key.kind for key in all_keys()))
FIELDS = [(kind, field.name) for kind in SECTIONS for field in dataclasses.fields(kind)]


def holds_sections(kind: type, name: str) -> bool:
    hint = typing.get_type_hints(kind)[name]
    return any(part in SECTIONS for part in (hint, *typing.get_args(hint)))


def test_every_field_that_is_no_section_has_a_check_and_no_check_is_left_over() -> None:
    assert set(schema.CHECKS) == {field for field in FIELDS if not holds_sections(*field)}


@pytest.mark.parametrize(("kind", "name"), schema.CHECKS)
def test_every_default_passes_its_own_check(kind: type, name: str) -> None:
    """But for what must not be left out where the section is given at all."""
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    if field.default is dataclasses.MISSING or (kind is schema.Gpu and name != "name"):
        return

    values = field.default if isinstance(field.default, tuple) else (field.default,)

    assert all(schema.CHECKS[kind, name].accepts(value) for value in values)
