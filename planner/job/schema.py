"""The job spec as values: what a job is, with every default filled in.

Field names are the keys of the YAML. Sizes are bytes, sequence lengths tokens, degrees ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.job.checkpoint_schema import CheckpointLoad, CheckpointSave
from planner.job.evaluation_schema import Eval, Generate
from planner.job.length_schema import Lengths
from planner.job.model_schema import AS_BUILT, Adapter, Decoder, Model
from planner.job.parallel_schema import Cp, DpReplicate, DpShard, Ep, Parallel, Pp, Tp
from planner.job.post_training_schema import PostTraining

__all__ = [
    "AS_BUILT",
    "Adapter",
    "CheckpointLoad",
    "CheckpointSave",
    "Cp",
    "Decoder",
    "DpReplicate",
    "DpShard",
    "Ep",
    "Eval",
    "Generate",
    "Lengths",
    "Model",
    "Parallel",
    "Pp",
    "Tp",
]  # parts of a job that are described in files of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What people call the job; no part of the plan's identity."""

    name: str = ""
    """Of the job, for reports."""
    team: str = ""
    """Whose job it is, for the metrics."""
    queue: str = ""
    """Where it is submitted to, for the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input tensor of a micro-batch; `shape` is without the batch dim.

    `maximum` bounds the values of an integer input (number of classes, size of a vocabulary).
    """

    shape: tuple[int, ...]
    """Sizes of the dims behind the batch dim."""
    dtype: str = "float32"
    """Of its elements."""
    maximum: int = 2
    """Values of an integer input lie below it: number of classes, size of a vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How the loss is computed. `model`: the model returns it itself, given labels."""

    name: str = "cross_entropy"
    """model: the model returns it itself, given labels; sum: of all that the model returns."""
    dtype: str = "float32"
    """In which dtype the logits enter the loss."""
    chunks: int = 1
    """Chunks along the tokens for a chunked cross entropy; 1: not chunked."""
    chunk_head: bool = False
    """The head is called for one chunk of tokens after the other too, and what it gives is cast to `dtype`, all of it
    before the loss, as litgpt does; false: the chunks of one output are cast in turn, as torchtune does."""
    keep_output: bool = False
    """The loop holds on to the model's output until the next one takes its place, as one does that never says `del`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Any class of torch.optim, with its own arguments."""

    name: str = "AdamW"
    """A class of torch.optim, or such as bitsandbytes.AdamW8bit, torchao.AdamW8bit."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Any other key is an argument of the class: lr, foreach, fused, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Activation recomputation: `none`, `full` (each block), `every` (each n-th block), `selective` (per op)."""

    mode: str = "none"
    """What is recomputed in the backward instead of kept; a lone value, `recompute: full`."""
    every: int = 1
    """Each n-th block, written `{every: 2}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoader:
    """What torch.utils.data.DataLoader is told, as far as the host's memory hinges on it."""

    workers: int = 0
    """Processes of each rank that load data (num_workers); 0: the rank loads by itself."""
    prefetch_factor: int = 2
    """Batches that each worker has read ahead."""
    pin_memory: bool = False
    """Batches are copied into pinned memory."""
    worker_bytes: int = 0
    """What the data set takes in each worker, where it is not shared with the rank."""
    dataset_bytes: int = 0
    """What the data set takes in the rank's own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """What runs under torch.compile, and with which of its arguments."""

    scope: tuple[str, ...] = ()
    """model | blocks | loss | optimizer, one or several; by default blocks where the job shards, else the model"""
    mode: str = "default"
    """default | reduce-overhead | max-autotune | max-autotune-no-cudagraphs; the middle two capture CUDA graphs"""
    fullgraph: bool = False
    """A graph break is an error."""
    dynamic: bool | None = None
    """Shapes as symbols; null: from the second shape on, as torch does by itself."""
    backend: str = "inductor"
    """inductor | aot_eager | eager"""
    autograd: bool = False
    """The backward as a whole is compiled too (compiled autograd), on one GPU, with one micro-batch in a step."""
    planned_as: str = "compiled"
    """compiled; or eager: the eager step is planned in its place, and the verdict refuses nothing for it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """What one step takes in, computes and keeps."""

    micro_batch_size: int = 1
    """Samples that a rank takes through the model at once."""
    sequence_length: int = 0
    """Tokens per sequence; 0 where `inputs` are given or the model takes no tokens. Of sequences that differ the
    longest: written `{p50: 512, p99: 4096, max: 8192}` or `{histogram: {512: 0.7, 8192: 0.3}}` it holds `lengths`."""
    lengths: Lengths | None = None
    """How long sequences are that are not all of one length; null: all are as long as `sequence_length`."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """Tensors that the model takes, by the names of its arguments; default: tokens, or the config's pictures."""
    padding: str = "none"
    """none: sequences of one length without an attention mask, as packed ones. right: batches with gaps after the
    shorter sequences, whose mask a transformers model gets; it then takes another attention kernel."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one optimizer step; under a pipeline those of one schedule step."""
    precision: str = "none"
    """How precision is mixed: by autocast (fp16 with a scaler), or by the policy of fully_shard (fsdp_mixed)."""
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    recompute: Recompute = field(default_factory=Recompute)
    gradient_clipping: float = 0.0
    """Largest norm; 0: not clipped."""
    zero_grad_set_to_none: bool = True
    """Gradients are dropped after the step; false: they are kept and filled with zeros."""
    checkpoint_load: CheckpointLoad | None = None
    checkpoint_save: CheckpointSave | None = None
    eval: Eval | None = None
    iterations: int = 3
    """How many iterations are traced."""
    optimizer_in_backward: bool = False
    """Each parameter is updated, and its gradient dropped, as soon as it is accumulated."""
    empty_cache_every: int = 0
    """torch.cuda.empty_cache() at the end of every so many iterations; 0: never."""
    activation_offload: bool = False
    """What the blocks save for their backward rests on the host (save_on_cpu, pinned)."""
    retains: str = ""
    """What the loop appends to a list that nobody empties, after each micro-batch, as a metric that is kept by mistake:
    loss, or output (all that the model returns); empty: nothing."""
    data_loader: DataLoader = field(default_factory=DataLoader)
    compile: Compile | None = None
    """What of the step is compiled; null or false: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the plan sees it; `name` is empty for one that the catalog does not have."""

    name: str = ""
    """A name of the catalog, or as nvidia-smi, schedulers and people call it."""
    total_bytes: int = 0
    """What torch.cuda.get_device_properties says; a named GPU brings it along."""
    arch: str = ""
    """Its compute capability; a named GPU brings it along."""

    @property
    def written(self) -> str | dict[str, str | int]:
        """As a spec says it: the name, or the figures of one without a name."""
        return self.name or {"total_bytes": self.total_bytes, "arch": self.arch}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines that the job runs on."""

    nodes: int = 1
    """Machines of the job."""
    gpus_per_node: int = 1
    """GPUs of each of them; one rank to a GPU."""
    gpu: Gpu = field(default_factory=Gpu)
    """Its name, or its figures; null for a plan without verdict."""
    held_by_others_bytes: int = 0
    """Bytes of each GPU that other processes hold; taken off the capacity."""
    host_memory: int = 0
    """Bytes of each node's main memory that the job may use, in a container its limit; 0: not said, and not judged."""

    @property
    def capacity_bytes(self) -> int:
        """Of each GPU, without what others hold."""
        return self.gpu.total_bytes - self.held_by_others_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the job will run with; the CUDA context and the workspaces hinge on it."""

    torch: str = "2.13"
    """Version of PyTorch."""
    cuda: str = "13.0"
    """Version of CUDA that PyTorch was built for."""
    step: str = "torch"
    """torch: the step is the one that this spec describes. megatron: it is Megatron-LM's own, and the plan an
    approximation of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Settings of PyTorch's caching allocator."""

    conf: str = ""
    """PYTORCH_ALLOC_CONF, as written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole job: everything that decides what memory each rank takes."""

    metadata: Metadata = field(default_factory=Metadata)
    model: Model
    train: Train = field(default_factory=Train)
    post_training: PostTraining | None = None
    parallel: Parallel = field(default_factory=Parallel)
    cluster: Cluster = field(default_factory=Cluster)
    software: Software = field(default_factory=Software)
    allocator: Allocator = field(default_factory=Allocator)
