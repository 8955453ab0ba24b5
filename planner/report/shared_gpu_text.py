"""A GPU that a trainer shares with an engine, for a terminal: who holds what in each phase, and the largest shares."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.shared_gpu import SharedGpu, SharedPhase
from planner.report.statement import RankClassStatement
from planner.report.style import Style, size
from planner.units import MIB

_LABEL, _SIZE = 19, 11
_HEADS = ("trainer", "weights", "KV cache", "the rest", "together")


def shared_lines(statement: RankClassStatement, shared: SharedGpu, style: Style) -> Iterator[str]:
    """The table of phases, and what it comes to."""
    yield "  on the device: the trainer's process, the engine's weights, its KV cache, the rest of the engine"
    yield from table_lines(shared, statement.capacity_bytes, style)
    low, high = statement.peak.interval_bytes
    yield f"    {'fullest, interval':<26}{size(low):>12} to {size(high)}"
    yield f"    {'capacity':<26}{size(statement.capacity_bytes):>12}"
    yield from (f"  {sentence}" for sentence in share_sentences(shared))


def table_lines(shared: SharedGpu, capacity_bytes: int, style: Style) -> Iterator[str]:
    """A row for each phase, the fullest of them marked."""
    frozen = any(row.reference_bytes + row.reward_bytes >= MIB for row in shared.phases)
    heads = [_HEADS[0], *(["frozen"] if frozen else []), *_HEADS[1:]]
    yield style.paint(f"  {'phase':<{_LABEL}}{''.join(f'{head:>{_SIZE}}' for head in heads)}", "dim")
    fullest = shared.fullest()
    for row in shared.phases:
        line = f"  {row.phase.value.replace('_', ' '):<{_LABEL}}"
        line += "".join(f"{size(count) if count else '':>{_SIZE}}" for count in _columns(row, frozen=frozen))
        over = row.total_bytes > capacity_bytes
        arrow = (" ◂" if style.unicode else " <-") if row is fullest else ""
        painted = style.paint(f"{line}{arrow}", "bold") if row is fullest else line
        yield style.paint(f"{line}{arrow}", "red") if over else painted


def share_sentences(shared: SharedGpu) -> Iterator[str]:
    """The engine's share, its cache, and the largest shares."""
    found = " (found by planner)" if shared.solved else ""
    blocks = f"{shared.kv_blocks:,} blocks of {size(shared.kv_block_bytes)}"
    yield f"gpu_memory_utilization {shared.utilization:.2f}{found}: {blocks}, {shared.kv_tokens:,} tokens"
    if not shared.largest_utilization:
        yield "no share goes: it exceeds with every one"
        return
    safe = f"{shared.largest_safe_utilization:.2f}" if shared.largest_safe_utilization else "none"
    yield f"largest safe share: {safe}; largest that does not exceed: {shared.largest_utilization:.2f}"


def _columns(row: SharedPhase, *, frozen: bool) -> list[int]:
    apart = row.reference_bytes + row.reward_bytes
    trainer = row.trainer_bytes + row.outside_bytes
    return [
        *([trainer, apart] if frozen else [trainer + apart]),
        row.engine_weights_bytes,
        row.engine_kv_cache_bytes,
        row.engine_activation_bytes + row.engine_outside_bytes,
        row.total_bytes,
    ]
