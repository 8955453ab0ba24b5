"""What the nodes of a job hold on the host, for a terminal and in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from planner.host.statement import HostStatement, NodeStatement
from planner.host_events import HostCategory
from planner.report.statement import Verdict
from planner.report.style import Style, size

_LABEL, _SIZE = 26, 12
_NAMES = {
    HostCategory.PROCESS: "processes and libraries",
    HostCategory.WORKER: "workers that load data",
    HostCategory.DATASET: "data set",
    HostCategory.BATCH: "batches read ahead",
    HostCategory.PINNED_CACHE: "pinned and kept",
    HostCategory.SHARED: "shared by the ranks",
}


def host_lines(host: HostStatement, style: Style, asked_by: str = "cluster.host_memory") -> Iterator[str]:
    """Every kind of node: what it holds at its highest point, and what there is; in short where nothing is judged.

    `asked_by`: where somebody may say what a node has.
    """
    for node in host.nodes:
        if host.verdict is None:
            yield from _unjudged(node, style, asked_by)
            continue
        yield style.paint(f"host of {nodes_of(node)}", "bold")
        yield from _node(node, host, style)
        yield ""


def host_sentence(host: HostStatement) -> str:
    """Whether the fullest node has the memory, in one sentence; empty where nothing is judged."""
    node, capacity = host.fullest, host.capacity_bytes
    if host.verdict is None:
        return ""
    if host.verdict == Verdict.FITS:
        return f"On the host {size(host.headroom_bytes)} of {size(capacity)} stay free on {nodes_of(node)}."
    if host.verdict == Verdict.EXCEEDS:
        return (
            f"It does not fit on the host: {nodes_of(node)} would take {size(-host.headroom_bytes)} more main memory "
            f"than the {size(capacity)} there are."
        )
    return (
        f"It is tight on the host: {size(node.peak.bytes)} fit into {size(capacity)} on {nodes_of(node)}, but not "
        f"{size(max(node.peak.interval_bytes[1], node.peak.bytes + node.file_bytes))}, which it may take."
    )


def host_needs(host: HostStatement) -> str:
    """What the fullest node takes of what there is, where, and when."""
    node = host.fullest
    needs = f"{size(node.peak.bytes)} of {size(host.capacity_bytes)} of main memory"
    return f"{needs} on {nodes_of(node)}, {_moment(node)}"


def _moment(node: NodeStatement) -> str:
    phase = node.peak.phase.value.replace("_", " ")
    return f"{phase} of iteration {node.peak.iteration}" if node.peak.iteration else phase


def nodes_of(node: NodeStatement) -> str:
    """The nodes and their ranks, in words."""
    nodes = f"node {node.nodes}" if node.nodes.isdigit() else f"each of nodes {node.nodes}"
    ranks = f"rank {node.ranks}" if node.ranks.isdigit() else f"ranks {node.ranks}"
    return f"{nodes} ({ranks})"


def _unjudged(node: NodeStatement, style: Style, asked_by: str) -> Iterator[str]:
    low, high = (size(each) for each in node.peak.interval_bytes)
    yield f"host of {nodes_of(node)}: {size(node.peak.bytes)} of main memory, {low} to {high}"
    yield style.paint(f"  not judged: {asked_by} does not say what a node has", "dim")
    yield ""


def _node(node: NodeStatement, host: HostStatement, style: Style) -> Iterator[str]:
    peak = node.peak
    yield f"  at the peak, {_moment(node)}: {size(peak.bytes)}"
    for category in HostCategory:
        if count := node.parts.get(category, 0):
            name = _NAMES.get(category, category.value.replace("_", " "))
            yield f"  {name:<{_LABEL}}{size(count):>{_SIZE}}{count / peak.bytes:>7.1%}"
    low, high = peak.interval_bytes
    yield style.paint(f"  {'node':<{_LABEL}}{size(peak.bytes):>{_SIZE}}", "bold")
    yield f"  {'  from what is assumed':<{_LABEL}}{size(low):>{_SIZE}} to {size(high)}"
    if node.file_bytes:
        yield f"  {'mapped files besides':<{_LABEL}}{size(node.file_bytes):>{_SIZE}}"
    for each in node.local_ranks:
        of = f"{each.count} {style.times} like rank {each.representative}"
        yield f"  {of:<{_LABEL}}{size(each.resident_bytes):>{_SIZE}} resident each"
    left = host.capacity_bytes - peak.bytes
    yield f"  {'capacity':<{_LABEL}}{size(host.capacity_bytes):>{_SIZE}}"
    label, color = ("too much", "red") if left < 0 else ("headroom", "green")
    yield style.paint(f"  {label:<{_LABEL}}{size(abs(left)):>{_SIZE}}", color)
