"""How many optimizer steps a program runs, read of its options and its own lines without running them."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from planner.tracing.program.program_files import (
    TrainingLoop,
    called,
    is_optimizer_step,
    last_name,
    training_loops,
)

_STEPS = re.compile(r"(?:(?:max|num|total|n)_)?(?:train(?:ing)?_)?(?:steps|iters|iterations|updates)")
"""Options that say it: --max_steps (transformers), --max_train_steps (accelerate), --train-iters (Megatron-LM)."""
_ARGUMENTS = re.compile(r"(?:Arguments|Config|Trainer)$")
"""Classes that are told `max_steps` (transformers, trl, Lightning)."""
_DECLARES = ("add_argument", "option")
"""Of argparse and click."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
              ast.Pow: operator.pow}  # fmt: skip
_MOST = 10**12


def steps_to_run(files: Mapping[Path, ast.Module], arguments: Sequence[str]) -> int:
    """By an option of the command, else by `max_steps` of a trainer, else by the numbers that its training loops
    count; 0 where none of them says it."""
    options = dict(_options(arguments))
    told = [count for name, count in options.items() if _STEPS.fullmatch(name) and count > 0]
    if told:
        return told[-1]
    known = {**_constants(files), **options}
    calls = [node for tree in files.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_trainers = {
        _number(keyword.value, known)
        for call in calls
        if _ARGUMENTS.search(called(call))
        for keyword in call.keywords
        if keyword.arg == "max_steps"
    }
    if of_trainers:
        return max(of_trainers.pop() or 0, 0) if len(of_trainers) == 1 else 0
    loops = training_loops(files)
    if sum(loop.is_inner for loop in loops) != 1:
        return 0
    return math.prod(_length(loop, known) for loop in loops)


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Whole numbers of `--name N`, `--name=N` and `part.name=N`."""
    for word, following in pairwise((*arguments, "")):
        written, equals, value = word.partition("=")
        name = written.lstrip("-").replace("-", "_").rpartition(".")[2]
        value = value if equals else following if word.startswith("-") else ""
        if re.fullmatch(r"-?[0-9][0-9_]{0,15}", value):
            yield name, int(value)


def _constants(files: Mapping[Path, ast.Module]) -> dict[str, int]:
    """Names that have one whole number in all files: by an assignment, or as the default of an option."""
    values: dict[str, set[int | None]] = {}
    for tree in files.values():
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        values.setdefault(last_name(target), set()).add(_number(value, {}))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    values.setdefault(last_name(target), set()).add(_number(value, {}))
                case ast.AugAssign(target=target):
                    values.setdefault(last_name(target), set()).add(None)
                case ast.Call(args=[ast.Constant(value=str(option)), *_]) if called(node) in _DECLARES:
                    name = option.lstrip("-").replace("-", "_")
                    default = next((_number(word.value, {}) for word in node.keywords if word.arg == "default"), None)
                    values.setdefault(name, set()).add(default)
    one = {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
    return {name: value for name, value in one.items() if value is not None}


def _number(node: ast.expr, known: Mapping[str, int]) -> int | None:
    """The whole number that an expression is by these names; None where it is none, or not known."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand, known)
            return None if positive is None else -positive
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _number(left, known), _number(right, known)
            if first is None or second is None or not (0 <= first < _MOST and 0 < second < _MOST):
                return None
            if isinstance(op, ast.Pow) and second * first.bit_length() > _MOST.bit_length():
                return None
            return int(_OPERATORS[type(op)](first, second))
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return known.get(last_name(node))
    return None


def _length(loop: TrainingLoop, known: Mapping[str, int]) -> int:
    """How often it is gone through; 0 where that is not known, or where not every time has a step."""
    numbered = loop.numbered()
    if numbered is None or numbered[1] not in ("range", "trange"):
        return 0
    for node in ast.walk(loop.node):
        if isinstance(node, ast.Break | ast.Return):
            return 0
        # `if step % 4 == 0: optimizer.step()`: gradients are accumulated.
        is_periodic = isinstance(node, ast.If) and any(isinstance(part, ast.Mod) for part in ast.walk(node.test))
        if is_periodic and any(isinstance(part, ast.Call) and is_optimizer_step(part) for part in ast.walk(node)):
            return 0
    ends = [_number(argument, known) for argument in numbered[0].args]
    if not 1 <= len(ends) <= 3 or 0 in ends[2:]:
        return 0
    limits = [end for end in ends if end is not None]
    return len(range(*limits)) if len(limits) == len(ends) else 0
