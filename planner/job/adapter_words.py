"""An adapter in a few words: `r=16,alpha=32,target=q_proj+v_proj`."""

from __future__ import annotations

from typing import Any

from planner.errors import SpecError

_COUNTS = {"r": "r", "rank": "r", "alpha": "alpha", "lora_alpha": "alpha"}
_TARGETS = ("target", "targets", "target_modules")


def adapter_of(kind: str, text: str, place: str) -> dict[str, Any]:
    """`model.adapter` as a spec writes it. Raises SpecError for a word that is not understood."""
    found: dict[str, Any] = {"kind": kind}
    for part in text.replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if not part:
            continue
        if not equals and part.isdecimal():
            key, value = "r", part
        if key in _COUNTS and value.isdecimal() and len(value) < 10:
            found[_COUNTS[key]] = int(value)
        elif key == "dropout" and value.replace(".", "", 1).isdecimal() and len(value) < 20:
            found["dropout"] = float(value)
        elif key in _TARGETS and value:
            found["target_modules"] = [each for each in value.split("+") if each]
        else:
            raise SpecError(
                f"{part[:80]!a} is nothing of an adapter",
                allowed="r=16, alpha=32, dropout=0.05, target=q_proj+v_proj, with commas between them",
                remedy=f"write {place} r=16; the job or the model stands before the options",
                place=place,
            )
    return found
