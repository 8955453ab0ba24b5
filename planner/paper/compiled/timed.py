"""What Inductor would decide by timing a GPU, decided by rules that a report can state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from planner.paper.compiled.assumptions import assume

_CHOSEN = "of several kernels for one operation ({name}) the library's is the fastest, or else Inductor's first"
_PADDED = "matrix multiplications of sizes that are no multiple of 16 bytes are faster padded"


def should_pad(*_match: Any, **_options: Any) -> bool:
    """In place of `_should_pad` (torch 2.13, torch/_inductor/fx_passes/pad_mm.py), which times both ways for every
    multiplication that is large enough for its GPU to be bound by computing; below 2.11 of the times that it kept."""
    assume(_PADDED)
    return True


def choose_kernel(real: Callable[..., Any]) -> Callable[..., Any]:
    """`AlgorithmSelectorCache.__call__` (torch 2.13, torch/_inductor/select_algorithm.py) without timing: of one kernel
    it is chosen, as under Inductor's setting `deterministic`, which came with torch 2.10."""

    from torch._inductor.select_algorithm import ExternKernelCaller

    def choose(self: Any, name: str, choices: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        known = [each for each in choices if each is not None]
        if len(known) > 1:
            assume(_CHOSEN.format(name=name))
        of_a_library = [each for each in known if isinstance(each, ExternKernelCaller)]
        return real(self, name, (of_a_library or known)[:1], *arguments, **options)

    return choose
