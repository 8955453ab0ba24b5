"""How a job is distributed over its ranks, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from planner.job.field_checks import PlainData, PositiveMib, Ranks, Reshard, like, number, one_of, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class DpReplicate:
    """Data parallelism with replicated parameters: DistributedDataParallel and its arguments."""

    degree: Ranks = 1
    """How many replicas."""
    bucket_cap_mb: PositiveMib = 25.0
    """Size of a bucket of gradients."""
    gradient_as_bucket_view: bool = False
    """Gradients are views of the buckets, and not there twice."""
    no_sync: bool = True
    """Accumulate gradients under `no_sync()`: buckets are reduced in the last micro-batch only."""
    zero_redundancy_optimizer: bool = False
    """ZeRO stage 1: each replica keeps the optimizer's state of its part (ZeroRedundancyOptimizer)."""
    arguments: PlainData = field(default_factory=dict)
    """Any other key is an argument of DistributedDataParallel: find_unused_parameters, static_graph, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpShard:
    """Data parallelism by `fully_shard` (FSDP2): every block and the root are units that are gathered at once."""

    degree: Ranks = 1
    """Over how many ranks parameters, gradients and optimizer state are sharded."""
    reshard_after_forward: Reshard = True
    """Of the blocks; a number: to so many ranks. The root keeps its parameters, as torch does by default."""
    keep_last: bool = False
    """The last block, or the last of the `groups`, keeps its parameters after the forward: it is needed next."""
    groups: Annotated[
        tuple[str, ...], like(r"[\w.]+( [\w.]+)*", 'paths of modules with spaces between them ("norm head")')
    ] = ()
    """Modules that are sharded for themselves beside the blocks; those of one group are gathered together
    (`[embed, "norm head"]`)."""
    reduce_dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    """In which dtype gradients are reduced under `fsdp_mixed`; parameters are gathered in bfloat16."""
    offload: Annotated[str, one_of("", "cpu")] = ""
    """cpu: parameters, gradients and optimizer state rest on the host (CPUOffloadPolicy)"""
    no_sync: bool = False
    """Accumulate gradients unreduced; reduce in the last micro-batch only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tp:
    """Tensor parallelism: DTensor's `parallelize_module`, by the model's own plan."""

    degree: Ranks = 1
    """Over how many ranks layers are split."""
    sequence_parallel: bool = False
    """Norms and residuals split along the tokens."""
    loss_parallel: bool = False
    """The loss on logits split along the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pp:
    """Pipeline parallelism: a schedule of torch.distributed.pipelining.

    Its micro-batches are `train.gradient_accumulation_steps`.
    """

    degree: Ranks = 1
    """How many ranks a pipeline has."""
    schedule: Annotated[str, like(r"\w+", "the name of a schedule of torch.distributed.pipelining")] = "1F1B"
    """1F1B, GPipe, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, ..."""
    split: Annotated[tuple[int, ...], whole(1, "layers")] = ()
    """Layers of each stage, in the order of stages; empty: as even as they can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cp:
    """Context parallelism: `torch.distributed.tensor.experimental.context_parallel`."""

    degree: Ranks = 1
    """Over how many ranks a sequence is split."""
    rotate: Annotated[str, one_of("allgather", "alltoall")] = "allgather"
    """How keys and values travel; alltoall: around a ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ep:
    """Expert parallelism: the experts are split along this axis, which is one of data for all else."""

    degree: Ranks = 1
    """Over how many ranks the experts are split."""
    imbalance: Annotated[float, number("a number from 1", 1)] = 1.0
    """Tokens of the fullest rank over the mean; 1: balanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the ranks divide the work; the product of the degrees is the number of GPUs."""

    dp_replicate: DpReplicate = field(default_factory=DpReplicate)
    dp_shard: DpShard = field(default_factory=DpShard)
    tp: Tp = field(default_factory=Tp)
    pp: Pp = field(default_factory=Pp)
    cp: Cp = field(default_factory=Cp)
    ep: Ep = field(default_factory=Ep)
