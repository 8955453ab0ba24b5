"""What generated code checks of an operator's results: sizes and strides, and whose operator it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner import paper  # noqa: F401  before torch
from planner.paper.compiled import operator_results
from planner.paper.compiled.generated import Origins

import torch  # isort: skip
from torch._inductor.async_compile import AsyncCompile  # isort: skip

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
    with operator_results.other_strides(go_on=True):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


@pytest.mark.parametrize("operator", ["aten::mm", ""])
def test_those_of_torchs_own_operators_are_not(operator: str) -> None:
    origins = Origins([("", operator)], [])
    origins.enter(0)
    with operator_results.other_strides(go_on=True), pytest.raises(AssertionError):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


def test_nor_are_a_programs_where_it_is_compiled_as_asked() -> None:
    origins = Origins([("", "planner_test::turned")], [])
    origins.enter(0)
    with operator_results.other_strides(go_on=False), pytest.raises(AssertionError):
        origins.assert_size_stride(torch.empty(3, 2).T, _SIZE, _STRIDE)


def test_generated_code_brings_no_processes_that_compile() -> None:
    assert AsyncCompile.process_pool.cache_info().currsize == 0
