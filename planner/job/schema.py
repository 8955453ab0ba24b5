"""The job spec as values: what a job is, with every default filled in.

Field names are the keys of the YAML. Sizes are bytes, sequence lengths tokens, degrees ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What people call the job; no part of the plan's identity."""

    name: str = ""
    team: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The built-in Llama-shaped decoder for quick what-ifs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tie_embeddings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank layers that are trained in place of the model: LoRA, by peft."""

    kind: str = "lora"
    """lora | dora | qlora: beside a model in four bits (nf4, double quantization)"""
    r: int = 8
    """The rank of the layers."""
    alpha: int = 8
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ()
    """Names of the modules that are adapted; empty: those that peft knows for the architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Exactly one of `hf_config`, `factory`, `decoder` is given."""

    hf_config: Mapping[str, Any] | None = None
    """The content of a transformers config.json, inlined."""
    factory: str = ""
    """`module:callable`, any callable that returns an nn.Module."""
    factory_arguments: Mapping[str, Any] = field(default_factory=dict)
    factory_path: str = ""
    """A folder put in front of sys.path for the factory; default: the spec file's folder."""
    decoder: Decoder | None = None
    head: str = ""
    """Which transformers head (`causal_lm`, `masked_lm`, ...); empty: by architecture."""
    blocks: str = ""
    """Pattern of the module paths that are wrapped and recomputed; empty: found."""
    parameter_dtype: str = "float32"
    attention: str = "sdpa"
    """The `attn_implementation` of a transformers model: sdpa or eager."""
    adapter: Adapter | None = None
    """Train an adapter alone, the model frozen; for a transformers config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input tensor of a micro-batch; `shape` is without the batch dim.

    `maximum` bounds the values of an integer input (number of classes, size of a vocabulary).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    maximum: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How the loss is computed. `model`: the model returns it itself, given labels."""

    name: str = "cross_entropy"
    """cross_entropy | mse | sum | model"""
    dtype: str = "float32"
    """In which dtype the logits enter the loss."""
    chunks: int = 1
    """Chunks along the tokens for a chunked cross entropy; 1: not chunked."""
    keep_output: bool = False
    """The loop holds on to the model's output until the next one takes its place, as one does that never says `del`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Any class of torch.optim, with its own arguments."""

    name: str = "AdamW"
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Activation recomputation: `none`, `full` (each block), `every` (each n-th block), `selective` (per op)."""

    mode: str = "none"
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """A checkpoint is loaded before training: onto `cpu` or onto the `device`, its state dict dropped or kept."""

    map_location: str = "cpu"
    keep_reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """An evaluation under no_grad after every `every` iterations."""

    micro_batch_size: int = 1
    every: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    micro_batch_size: int = 1
    sequence_length: int = 0
    """Tokens per sequence; 0 where `inputs` are given or the model takes no tokens."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    gradient_accumulation_steps: int = 1
    precision: str = "none"
    """none | bf16_autocast | fp16_autocast | fsdp_mixed"""
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    recompute: Recompute = field(default_factory=Recompute)
    gradient_clipping: float = 0.0
    """Largest norm; 0: not clipped."""
    zero_grad_set_to_none: bool = True
    checkpoint_load: CheckpointLoad | None = None
    eval: Eval | None = None
    iterations: int = 3
    """How many iterations are traced."""
    optimizer_in_backward: bool = False
    """Each parameter is updated, and its gradient dropped, as soon as it is accumulated."""
    activation_offload: bool = False
    """What the blocks save for their backward rests on the host (save_on_cpu, pinned)."""
    compile: bool = False
    """The job runs under torch.compile. The trace is that of the eager program; the plan says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpReplicate:
    """Data parallelism with replicated parameters: DistributedDataParallel and its arguments."""

    degree: int = 1
    kind: str = "ddp"
    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    init_sync: bool = True
    comm_hook: str = ""
    """empty | fp16_compress | bf16_compress | power_sgd"""
    no_sync: bool = True
    """Accumulate gradients under `no_sync()`: buckets are reduced in the last micro-batch only."""
    zero_redundancy_optimizer: bool = False
    """ZeRO stage 1: each replica keeps the optimizer's state of its part (ZeroRedundancyOptimizer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DpShard:
    """Data parallelism with sharded parameters: `fully_shard` (FSDP2) of every block and of the root."""

    degree: int = 1
    kind: str = "fsdp2"
    reshard_after_forward: bool | int = True
    """Of the blocks; a number: to so many ranks. The root keeps its parameters, as fully_shard does by default."""
    keep_last: bool = False
    """The last block, or the last of the `groups`, keeps its parameters after the forward: it is needed next."""
    groups: tuple[str, ...] = ()
    """Modules that are sharded for themselves beside the blocks; those of one group are gathered together
    (`[embed, "norm head"]`)."""
    reduce_dtype: str = "float32"
    """In which dtype gradients are reduced under `fsdp_mixed`; parameters are gathered in bfloat16."""
    offload: str = ""
    """empty | cpu: parameters, gradients and optimizer state rest on the host (CPUOffloadPolicy)"""
    no_sync: bool = False
    """Accumulate gradients unreduced; reduce in the last micro-batch only."""
    prefetch: int = 0
    """How many blocks ahead parameters are gathered explicitly; 0: as fully_shard does by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tp:
    """Tensor parallelism: DTensor's `parallelize_module`."""

    degree: int = 1
    sequence_parallel: bool = False
    """Norms and residuals split along the tokens."""
    loss_parallel: bool = False
    """The loss on logits split along the vocabulary."""
    plan: Mapping[str, str] = field(default_factory=dict)
    """Pattern of module paths -> style (colwise, rowwise, ...); default: the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pp:
    """Pipeline parallelism: a schedule of torch.distributed.pipelining.

    Its micro-batches are `train.gradient_accumulation_steps`.
    """

    degree: int = 1
    schedule: str = "1F1B"
    split: tuple[int, ...] = ()
    """Layers of each stage, in the order of stages; empty: as even as they can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cp:
    """Context parallelism: `torch.distributed.tensor.experimental.context_parallel`."""

    degree: int = 1
    rotate: str = "allgather"
    """How keys and values travel: allgather | alltoall (ring)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ep:
    """Expert parallelism: the experts are split along this axis, which is one of data for all else."""

    degree: int = 1
    imbalance: float = 1.0
    """Tokens of the fullest rank over the mean; 1: balanced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    dp_replicate: DpReplicate = field(default_factory=DpReplicate)
    dp_shard: DpShard = field(default_factory=DpShard)
    tp: Tp = field(default_factory=Tp)
    pp: Pp = field(default_factory=Pp)
    cp: Cp = field(default_factory=Cp)
    ep: Ep = field(default_factory=Ep)
    deepspeed: Mapping[str, Any] | None = None
    """The content of a ds_config.json, inlined: DeepSpeed's engine among the ranks of `dp_replicate`, instead of
    DistributedDataParallel. Its optimizer, if it has one, takes the place of `train.optimizer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the plan sees it; `name` is empty for one that the catalog does not have."""

    name: str = ""
    total_bytes: int = 0
    arch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    nodes: int = 1
    gpus_per_node: int = 1
    gpu: Gpu = field(default_factory=Gpu)
    held_by_others_bytes: int = 0
    """Bytes of each GPU that other processes hold; taken off the capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the job will run with; the CUDA context and the workspaces hinge on it."""

    torch: str = "2.13"
    cuda: str = "13.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    conf: str = ""
    """PYTORCH_ALLOC_CONF, as written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole job: everything that decides what memory each rank takes."""

    metadata: Metadata = field(default_factory=Metadata)
    model: Model
    train: Train = field(default_factory=Train)
    parallel: Parallel = field(default_factory=Parallel)
    cluster: Cluster = field(default_factory=Cluster)
    software: Software = field(default_factory=Software)
    allocator: Allocator = field(default_factory=Allocator)
