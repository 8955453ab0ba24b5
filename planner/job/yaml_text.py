"""YAML text as nodes that know their line and column.

Plain scalars are read as in the core schema of YAML 1.2, not as in 1.1: `no` and `on` are text, `1e-4` is a number,
`010` is text since the two versions disagree about it. Tags, several documents and duplicate keys are refused.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from planner.errors import SpecError
from planner.job.json_text import fractional_number, whole_number
from planner.job.nodes import Node, Scalar, below, check_text, item_of
from planner.job.size_limits import MOST_DEPTH, MOST_VALUES, MOST_YAML_NODES

_TAG = "tag:yaml.org,2002:"

RESOLVERS = (
    (_TAG + "bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    (_TAG + "null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    (_TAG + "int", re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]{3})*)|0x[0-9a-fA-F]+|0o[0-7]+"), list("-+0123456789")),
    (
        _TAG + "float",
        re.compile(
            r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        list("-+.0123456789"),
    ),
    (_TAG + "merge", re.compile(r"<<"), ["<"]),
)
"""Tag, pattern of the whole scalar and its first characters; the first that matches names the type."""


class _Loader(yaml.SafeLoader):
    """Stops where the text is more, or deeper, than a spec may be: PyYAML looks through all open flow collections at
    each token, and takes its time for each node."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own way)

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self._source, self._nodes = source, 0

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803  (PyYAML's own name)
        if self.flow_level > MOST_DEPTH:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > MOST_YAML_NODES:
            raise SpecError(
                f"the YAML has more than {MOST_YAML_NODES} keys and values",
                allowed="fewer; or JSON, which is read faster",
                remedy="name a config.json instead of its content, or give a bundle (planner spec --bundle)",
                place=_place(self._source, self.peek_event().start_mark),  # type: ignore[no-untyped-call]
            )
        return super().compose_node(parent, index)


for _tag, _pattern, _first in RESOLVERS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})\\Z"), _first)


def read_yaml(text: str, source: str) -> Node:
    """The only document of a YAML text; SpecError with line and column where it is not usable YAML."""
    try:
        return _Conversion(source).node(_compose(text, source), "", "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ": ".join(part for part in ("no YAML", error.context, error.problem) if part)
        remedy = "indent with spaces" if "'\\t'" in problem else ""
        raise SpecError(problem, remedy=remedy, place=_place(source, mark) if mark else source) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"{source}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        raise SpecError(f"no YAML: {error.reason}", place=place) from None
    except RecursionError:
        raise SpecError("no usable YAML: nested too deeply", place=source) from None
    except (ValueError, OverflowError) as error:  # PyYAML converts escapes and versions without a look at them
        raise SpecError(f"no YAML: {error}", place=source) from None


def _compose(text: str, source: str) -> yaml.Node:
    loader = _Loader(text, source)
    try:
        if not loader.check_node():
            raise SpecError("the file is empty", allowed="a job spec", place=source)
        first = loader.get_node()
        if loader.check_node():
            second = loader.get_node()
            place = _place(source, second.start_mark) if second else source
            raise SpecError("a second document begins here", allowed="one job spec to a file", place=place)
        assert first is not None  # check_node() has said so
        return first
    finally:
        loader.dispose()


def _place(source: str, mark: yaml.Mark) -> str:
    return f"{source}:{mark.line + 1}:{mark.column + 1}"


class _Conversion:
    """From PyYAML's nodes to ours, which keep what messages need."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes = 0
        self._open: set[int] = set()

    def node(self, yaml_node: yaml.Node, path: str, key_place: str) -> Node:
        place = _place(self._source, yaml_node.start_mark)
        self._nodes += 1
        if self._nodes > MOST_VALUES:
            raise SpecError("the aliases stand for too much", remedy="write it out", place=place)
        if isinstance(yaml_node, yaml.ScalarNode):
            value = self._scalar(yaml_node, path, place)
            written = yaml_node.value if isinstance(value, int | float) and not isinstance(value, bool) else ""
            return Node(value, path, place, key_place, written)
        if len(self._open) > MOST_DEPTH:
            raise RecursionError
        if id(yaml_node) in self._open:
            raise SpecError("an alias stands inside of what it names", remedy="write it out", place=place)
        self._open.add(id(yaml_node))
        values: list[Node] | dict[str, Node]
        if isinstance(yaml_node, yaml.SequenceNode) and yaml_node.tag == _TAG + "seq":
            values = [self.node(item, item_of(path, index), "") for index, item in enumerate(yaml_node.value)]
        elif isinstance(yaml_node, yaml.MappingNode) and yaml_node.tag == _TAG + "map":
            values = self._mapping(yaml_node, path)
        else:
            raise _unknown_tag(yaml_node, place)
        self._open.discard(id(yaml_node))
        return Node(values, path, place, key_place)

    def _mapping(self, yaml_node: yaml.MappingNode, path: str) -> dict[str, Node]:
        own: dict[str, Node] = {}
        sources: list[dict[str, Node]] = []
        for key, value in yaml_node.value:
            place = _place(self._source, key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise SpecError("a list or mapping is used as a key", allowed="a name", place=place)
            if key.tag == _TAG + "merge":
                # What `<<: *base` or `<<: [*first, *second]` brings in, one after the other.
                bases = value.value if isinstance(value, yaml.SequenceNode) else [value]
                nodes = (self.node(base, path, _place(self._source, base.start_mark)) for base in bases)
                sources += [node.mapping() for node in nodes]
            elif key.value in own:
                first = own[key.value].key_place
                raise SpecError(
                    f"{below(path, key.value)} stands twice, first at {first}", remedy="keep one of them", place=place
                )
            else:
                check_text(key.value, f"a key of {path or 'the document'}", place)
                own[key.value] = self.node(value, below(path, key.value), place)
        merged: dict[str, Node] = {}
        for source in reversed(sources):  # the first one that has a key wins
            merged.update(source)
        return {**merged, **own}

    def _scalar(self, yaml_node: yaml.ScalarNode, path: str, place: str) -> Scalar:
        text: str = yaml_node.value
        try:
            match yaml_node.tag.removeprefix(_TAG):
                case "str" | "merge":
                    check_text(text, path, place)
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[text.lower()]
                case "int":
                    return whole_number(text, place, path)
                case "float":
                    return fractional_number(re.sub(r"\.(?=inf|nan)", "", text.lower()), place, path)
        except (ValueError, KeyError):
            kind = yaml_node.tag.removeprefix(_TAG)
            raise SpecError(f"{text[:80]!r} cannot be read as {kind}", place=place) from None
        raise _unknown_tag(yaml_node, place)


def _unknown_tag(yaml_node: yaml.Node, place: str) -> SpecError:
    tag = yaml_node.tag.replace(_TAG, "!!")
    return SpecError(f"the YAML tag {tag} is not accepted", remedy="write plain values", place=place)
