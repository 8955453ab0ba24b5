"""Says what is wrong with a body that its model refuses, as a problem with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from planner.service.problems import RequestError

_ALLOWED: Mapping[str, str] = {
    "int_type": "a whole number",
    "less_than": "a whole number below 2^62",
    "greater_than": "a whole number above -2^62",
    "string_type": "a text",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "value_error": "such as 2026-01-31T12:00:00Z",
    "missing": "a value",
}
"""By the type that pydantic gives an error (docs.pydantic.dev, validation errors)."""
_BY_CONTEXT: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "literal_error": lambda context: str(context["expected"]).replace("'", ""),
    "enum": lambda context: str(context["expected"]).replace("'", ""),
    "string_pattern_mismatch": lambda context: f"what matches {context['pattern']}",
}


def error_of_body(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first thing that is wrong, as 422 with place and what is allowed."""
    # Against each part of a union pydantic reports an error; its place ends with the part's name.
    first = error.errors(include_url=False)[0]
    place = _place(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            known = ", ".join(_keys(model, first["loc"]))
            return RequestError(422, f"there is no key {_show(first['loc'][-1])}", allowed=known, place=place)
        case "missing":
            return RequestError(422, f"{place} is missing", allowed=_ALLOWED["missing"], place=place)
        case kind:
            said = _BY_CONTEXT.get(kind)
            allowed = said(first["ctx"]) if said else _ALLOWED.get(kind, first["msg"])
            return RequestError(422, f"{place} is {_show(first['input'])}", allowed=allowed, place=place)


def _place(parts: Sequence[int | str]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:60]}"
    return text.removeprefix(".")


def _keys(model: type[BaseModel], parts: Sequence[int | str]) -> list[str]:
    """The keys of the object in which the last part lies."""
    whole = model.model_json_schema()
    schema: Mapping[str, Any] = whole
    for part in parts[:-1]:
        key = "items" if isinstance(part, int) else "properties"
        found = next(each[key] for each in (schema, *schema.get("anyOf", ())) if key in each)
        found = found if isinstance(part, int) else found[part]
        schema = whole["$defs"][found["$ref"].rpartition("/")[2]] if "$ref" in found else found
    return list(schema.get("properties", ()))


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
