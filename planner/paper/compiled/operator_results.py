"""What generated code checks of an operator's results: their sizes and strides are those that it was compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._library.simple_registry import singleton

from planner.paper.compiled.assumptions import ASSUMED

_OTHER_STRIDES = (
    "the operator {name} returns strides that its own register_fake does not say: torch 2.7 and later stop there, one "
    "before it (2.6, and nightlies of 2.7), which goes on, is taken to run the program"
)
_goes_on = False


@contextmanager
def other_strides(*, go_on: bool) -> Iterator[None]:
    """Inside, a program whose own operators return other strides than they say goes on, as under torch 2.6, or not."""
    global _goes_on
    before, _goes_on = _goes_on, go_on
    try:
        yield
    finally:
        _goes_on = before


def assert_size_stride(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], operator: str = "", *, at_work: str = ""
) -> None:
    """As the function of this name that generated code calls (torch 2.13, torch/csrc/dynamo/guards.cpp), but for
    strides of a program's own operators: of earlier versions of torch the generated code did not check them.

    `at_work` (`aten::mm`) says whose results they are where the code does not, as up to torch 2.7. Raises
    AssertionError as that one does.
    """
    try:
        named = (operator,) if operator else ()  # which up to 2.7 is not given
        torch._C._dynamo.guards.assert_size_stride(tensor, size, stride, *named)
    except AssertionError:
        name = operator.removeprefix("torch.ops.").removesuffix(".default").replace(".", "::", 1) or at_work
        if not _goes_on or tuple(tensor.size()) != tuple(size) or not _is_programs_own(name):
            raise
        ASSUMED.add(_OTHER_STRIDES.format(name=name))


def _is_programs_own(name: str) -> bool:
    """Whether a function in Python says what the operator returns (`torch.library.register_fake`)."""
    return bool(name) and singleton.find(name).fake_impl.kernel is not None
