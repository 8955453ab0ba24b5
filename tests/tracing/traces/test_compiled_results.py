"""What generated code checks of an operator's results: sizes and strides, and whose operator it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from planner import paper  # noqa: F401  before torch
from planner.paper.compiled import generated, patches
from planner.paper.compiled.generated import Origins

import torch  # isort: skip

_SIZE, _STRIDE = (2, 3), (3, 1)


@pytest.fixture(scope="module", autouse=True)
def programs_operator() -> Iterator[None]:
    """`planner_test::turned`, whose register_fake a program wrote."""
    with torch.library._scoped_library("planner_test", "FRAGMENT") as library:
        library.define("turned(Tensor x) -> Tensor")
        torch.library.register_fake("planner_test::turned", lambda x: x, lib=library)
        yield


def test_strides_that_a_programs_operator_does_not_say_are_let_pass_where_the_code_names_none() -> None:
    origins = Origins([("", "planner_test::turned")], [])
    origins.enter(0)
    with generated.other_strides(go_on=True):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


@pytest.mark.parametrize("operator", ["aten::mm", ""])
def test_those_of_torchs_own_operators_are_not(operator: str) -> None:
    origins = Origins([("", operator)], [])
    origins.enter(0)
    with generated.other_strides(go_on=True), pytest.raises(AssertionError):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


def test_nor_are_a_programs_where_it_is_compiled_as_asked() -> None:
    origins = Origins([("", "planner_test::turned")], [])
    origins.enter(0)
    with generated.other_strides(go_on=False), pytest.raises(AssertionError):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


LOADED = """
from planner import paper
from planner.paper.compiled import generated
from torch._inductor.async_compile import AsyncCompile
print(AsyncCompile.process_pool.cache_info().currsize)
"""


def test_inductor_brings_no_processes_that_compile() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    assert ended.stdout == "0\n"


def test_a_part_that_takes_its_arguments_in_one_list_still_says_so() -> None:
    def part(arguments: list[int]) -> list[int]:
        return arguments

    part._boxed_call = True  # type: ignore[attr-defined]
    post_compile = patches.results_again(lambda _self, _part: lambda arguments: arguments)

    assert post_compile(None, part)._boxed_call
