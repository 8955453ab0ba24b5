"""The result of `planner replay` for a terminal, from the JSON object `planner.replay/1`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.report.style import Style, size

_LABEL, _COUNT = 18, 12


def render_replay(name: str, report: Mapping[str, Any], style: Style) -> str:
    """`name` is what people call the snapshot, `report` the object of the contract."""
    lines = [style.paint(name, "bold")]
    for device in report["devices"]:
        lines += ["", *_device(device, style)]
    lines += ["", _in_words(report, style)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _device(device: Mapping[str, Any], style: Style) -> Iterator[str]:
    yield style.paint(f"device {device['device']}", "bold")
    yield f"  {'events':<{_LABEL}}{device['events']:>{_COUNT},}"
    yield _format_matches("addresses", device["addresses"], style)
    yield _format_matches("segments", device["segments"], style)
    yield f"  {'peak allocated':<{_LABEL}}{size(device['peak_allocated_bytes']):>{_COUNT}}"
    yield f"  {'peak reserved':<{_LABEL}}{size(device['peak_reserved_bytes']):>{_COUNT}}"
    first = device.get("first_difference")
    if first is not None:
        yield f"  first difference at event {first['event']:,}, in its {first['what']}:"
        yield f"    recorded  {first['recorded']}"
        yield f"    replayed  {first['replayed']}"
    other = device.get("what_if")
    if other is not None:
        yield from _what_if(other, device, style)


def _format_matches(label: str, matched: Mapping[str, int], style: Style) -> str:
    done, total = matched["matched"], matched["total"]
    share = done / total if total else 1.0
    # Rounding must not turn a miss into 100 %.
    shown = "100 %" if done == total else f"{min(share, 0.9999):.2%}".replace("%", " %")
    row = f"  {label:<{_LABEL}}{done:>{_COUNT},} of {total:,}   {shown}"
    return style.paint(row, "green" if done == total else "yellow")


def _what_if(other: Mapping[str, Any], device: Mapping[str, Any], style: Style) -> Iterator[str]:
    saved = device["peak_reserved_bytes"] - other["peak_reserved_bytes"]
    change = "the same" if saved == 0 else f"{size(abs(saved))} {'less' if saved > 0 else 'more'}"
    about = "" if other.get("exact", True) else ", about: in which order its first blocks were made is not recorded"
    yield style.paint(f"  with {other['conf'] or 'the default settings'}", "bold")
    yield f"  {'peak reserved':<{_LABEL}}{size(other['peak_reserved_bytes']):>{_COUNT}}, {change}{about}"


def _in_words(report: Mapping[str, Any], style: Style) -> str:
    if not report["devices"]:
        return style.paint("The snapshot holds no events.", "yellow")
    if all(_exact(device) for device in report["devices"]):
        return style.paint("Every address and every segment is the recorded one.", "green")
    return style.paint("Not every decision of the allocator was replayed.", "yellow")


def _exact(device: Mapping[str, Any]) -> bool:
    pairs = device["addresses"], device["segments"]
    return device.get("first_difference") is None and all(each["matched"] == each["total"] for each in pairs)
