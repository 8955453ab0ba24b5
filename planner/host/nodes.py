"""Which nodes have which ranks: nodes of the same ranks' classes are one kind, whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.layout.rank_sets import RankSet


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes whose local ranks are of the same classes. `counts` are pairs of a class's place in the list that was given
    and the number of its ranks on each of these nodes."""

    nodes: RankSet
    counts: tuple[tuple[int, int], ...]


def node_kinds(classes: Sequence[RankSet], ranks_per_node: int) -> tuple[NodeKind, ...]:
    """The kinds of nodes, by their first node; costs no more than the number of spans of the classes.

    Rank r is on node r // ranks_per_node, as torchrun numbers them.
    """
    edges: Counter[tuple[int, int]] = Counter()
    whole: list[tuple[int, int, int]] = []
    for place, ranks in enumerate(classes):
        for first, last in ranks.spans:
            _add_span(place, first, last, ranks_per_node, edges, whole)
    by_node: dict[int, list[tuple[int, int]]] = {}
    for (node, place), count in sorted(edges.items()):
        by_node.setdefault(node, []).append((place, count))
    spans: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for node, counts in by_node.items():
        spans.setdefault(tuple(counts), []).append((node, node))
    for place, first, last in whole:
        spans.setdefault(((place, ranks_per_node),), []).append((first, last))
    kinds = (NodeKind(RankSet.of(each), counts) for counts, each in spans.items())
    return tuple(sorted(kinds, key=lambda kind: kind.nodes.spans))


def _add_span(
    place: int,
    first: int,
    last: int,
    size: int,
    edges: Counter[tuple[int, int]],
    whole: list[tuple[int, int, int]],
) -> None:
    """Nodes at the ends of a span may have other ranks besides; those within have none."""
    begin, end = first // size, last // size
    for node in dict.fromkeys((begin, end)):
        edges[node, place] += min(last, node * size + size - 1) - max(first, node * size) + 1
    if end - begin > 1:
        whole.append((place, begin + 1, end - 1))


def ranks_of(nodes: RankSet, ranks_per_node: int) -> RankSet:
    """All ranks of these nodes."""
    return RankSet.of((first * ranks_per_node, (last + 1) * ranks_per_node - 1) for first, last in nodes.spans)


def count_nodes(kinds: Iterable[NodeKind]) -> int:
    """How many nodes there are of all kinds."""
    return sum(len(each.nodes) for each in kinds)
