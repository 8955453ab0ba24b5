"""Whether the lengths of sequences that a job gives are a distribution, and one that can be planned."""

from __future__ import annotations

from itertools import pairwise

from planner.job.length_schema import PERCENTILES, Lengths, tokens_of
from planner.job.nodes import Node
from planner.job.schema import Job

_WHOLE = 1e-6
"""How far shares may be from 1: people write `0.333`."""


def check_lengths(job: Job, document: Node) -> None:
    """Raises SpecError for the first contradiction; `document` is what the job was read from, for the places."""
    lengths = job.train.lengths
    if lengths is None:
        return
    section = document.nearest_to("train.lengths")
    if section.path != "train.lengths":  # as the mapping in the place of the sequence length
        section = document.nearest_to("train.sequence_length")
    _check_ways(lengths, section)
    if lengths.histogram:
        _check_shares(lengths, section.nearest_to("histogram"))
    _check_order(job, lengths, section)
    _check_batches(job, lengths, section)
    _check_rest(job, lengths, section)


def _check_ways(lengths: Lengths, section: Node) -> None:
    """One of percentiles, histogram, batches."""
    ways = {
        "percentiles": any(getattr(lengths, name) for name in PERCENTILES),
        "histogram": bool(lengths.histogram),
        "batches": bool(lengths.batches),
    }
    said = [name for name, is_said in ways.items() if is_said]
    if len(said) != 1:
        found = " and ".join(said) if said else "no distribution"
        allowed = "one of percentiles ({p50: 512, p99: 4096, max: 8192}), histogram and batches"
        raise section.error(f"has {found}", allowed=allowed)


def _check_shares(lengths: Lengths, node: Node) -> None:
    total = 0.0
    for length, share in lengths.histogram.items():
        at = node.nearest_to(length)
        if not tokens_of(length):
            raise at.error("has a key that is no number of tokens", allowed="such as 512, or 4k")
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise at.is_error(allowed="a share larger than 0 and not above 1")
        total += share
    if abs(total - 1) > _WHOLE:
        raise node.error(
            f"has shares that add up to {total:g}",
            allowed="shares that add up to 1",
            remedy="divide counts by their sum",
        )


def _check_order(job: Job, lengths: Lengths, section: Node) -> None:
    said = [("min", lengths.min), *((name, getattr(lengths, name)) for name in PERCENTILES if getattr(lengths, name))]
    if section.nearest_to("max") is not section:
        said.append(("max", job.train.sequence_length))
    for (lower, less), (name, more) in pairwise(said):
        if more < less:
            node = section.nearest_to(name)
            raise node.error(f"is {more}, less than {lower} ({less})", allowed="percentiles that do not fall")


def _check_batches(job: Job, lengths: Lengths, section: Node) -> None:
    longest, micro_batches = job.train.sequence_length, job.train.gradient_accumulation_steps
    node = section.nearest_to("batches")
    if lengths.batches and max(lengths.batches) < longest:
        allowed = f"one of train.sequence_length ({longest}), or longer ones, which are cut to it"
        raise node.error(f"has none longer than {max(lengths.batches)} tokens", allowed=allowed)
    if lengths.batches and len(lengths.batches) < micro_batches:
        allowed = f"at least train.gradient_accumulation_steps ({micro_batches})"
        raise node.error(f"has {len(lengths.batches)} batches, not enough for one step", allowed=allowed)


def _check_rest(job: Job, lengths: Lengths, section: Node) -> None:
    """What does not go together with batches that differ."""
    train, parallel, multiple = job.train, job.parallel, lengths.pad_to_multiple_of
    node = section.nearest_to("pad_to_multiple_of")
    if not train.sequence_length:
        raise section.error("has no longest sequence", remedy="give train.sequence_length")
    if train.sequence_length % multiple:
        raise node.error(f"is {multiple}, which does not divide train.sequence_length ({train.sequence_length})")
    split = 2 * parallel.cp.degree if parallel.cp.degree > 1 else 1
    split *= parallel.tp.degree if parallel.tp.sequence_parallel else 1
    if multiple % split or any(each % split for each in lengths.batches):
        raise node.error(f"is {multiple}, and the ranks split each batch's tokens", allowed=f"a multiple of {split}")
    for used, what in (
        (train.inputs, "train.inputs, whose shapes are fixed"),
        (train.compile is not None, "train.compile, which compiles for other lengths anew"),
        (parallel.pp.degree > 1, "parallel.pp, whose stages exchange tensors of one shape"),
        (parallel.dp_replicate.comm_hook == "power_sgd", "power_sgd, which begins after a thousand steps"),
    ):
        if used:
            raise section.error(f"is not planned with {what}", allowed="one length")
