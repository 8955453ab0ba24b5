"""The job spec as values: what a job is, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated

from planner.hardware import catalog
from planner.job.field_checks import (
    FLOATING,
    Check,
    Config,
    Count,
    Floating,
    HostBytes,
    Iterations,
    NotNegative,
    Path,
    PlainData,
    Samples,
    SomeTokens,
    Text,
    Tokens,
    anything,
    checks_of,
    like,
    number,
    one_of,
    size,
    tokens,
    whole,
)  # fmt: skip
from planner.job.parallel_schema import Cp, DpReplicate, DpShard, Ep, Parallel, Pp, Tp
from planner.units import MIB
from planner.versions import NEWEST_CUDA, torch_at_hand

__all__ = ["Cp", "DpReplicate", "DpShard", "Ep", "Parallel", "Pp", "Tp"]  # described in a file of their own

AS_BUILT = "as_built"
"""The `parameter_dtype` of a factory whose parameters keep the dtypes that it gave them."""
_MOST_STEPS = 100_000
"""Of a run that is replayed."""
_VERSION = r"[0-9]+\.[0-9]+\S*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The built-in Llama-shaped decoder for quick what-ifs."""

    layers: Count
    """Blocks of attention and feed-forward."""
    hidden: Count
    """Width of the residual stream; a multiple of `heads`."""
    heads: Count
    """Heads of the queries; a multiple of `kv_heads`."""
    kv_heads: Count
    """Heads of the keys and values."""
    ffn: Count
    """Width inside of the gated feed-forward."""
    vocab: Count
    """Entries of the embedding and of the head."""
    tie_embeddings: bool = False
    """Embedding and head are one parameter."""
    head_dim: Annotated[int, whole(0)] = 0
    """Width of a head; 0: hidden / heads."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys, as Qwen3 has it."""


ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head (peft 0.21, tuners/tuners_utils.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank layers that are trained in place of the model: LoRA, by peft."""

    kind: Annotated[str, one_of("lora", "dora", "qlora")] = "lora"
    """qlora: beside a model in four bits (nf4, double quantization), whose layers are packed as they are loaded; the
    rest is float32, by peft's prepare_model_for_kbit_training."""
    r: Count = 8
    """The rank of the layers."""
    target_modules: Annotated[
        tuple[str, ...], like(r"[\w.]+|all-linear", "names of modules (q_proj), or all-linear")
    ] = ()
    """Names of the modules that are adapted, or all-linear alone (peft's word: all linear layers but the head); empty:
    those that peft knows for the architecture."""
    arguments: PlainData = field(default_factory=dict)
    """Any other key is an argument of peft's LoraConfig: lora_alpha, lora_dropout, use_rslora, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Exactly one of `hf_config`, `factory`, `decoder` is given."""

    hf_config: Config = None
    """A transformers config: a well-known model's name, a path, or its content, which is what is kept."""
    factory: Annotated[str, like(r"|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", "`module:callable`")] = ""
    """`module:callable`, any callable that returns an nn.Module."""
    factory_arguments: PlainData = field(default_factory=dict)
    """Keyword arguments of the factory."""
    factory_path: Path = ""
    """A folder put in front of sys.path for the factory; default: the spec file's folder."""
    decoder: Decoder | None = None
    head: Annotated[str, like(r"[a-z0-9_]*", "a name such as causal_lm")] = ""
    """Which transformers head (`causal_lm`, `masked_lm`, ...); empty: by architecture."""
    blocks: Text = ""
    """Pattern of the module paths that are wrapped and recomputed; empty: found."""
    parameter_dtype: Annotated[
        str, one_of("", *FLOATING.names, AS_BUILT, allowed=f"{FLOATING.allowed}; {AS_BUILT} for a factory")
    ] = ""
    """A dtype that all parameters are cast to, or for a factory `as_built`: each keeps its own. Not said: `as_built`
    for a factory, float32 for all else."""
    attention: Annotated[str, one_of("sdpa", "eager")] = "sdpa"
    """The `attn_implementation` of a transformers model: sdpa or eager."""
    adapter: Adapter | None = None
    """Train an adapter alone, the model frozen; for a transformers config."""

    def __post_init__(self) -> None:
        if not self.parameter_dtype:
            object.__setattr__(self, "parameter_dtype", AS_BUILT if self.factory else "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of sequences as percentiles or as a histogram, up to `train.sequence_length`; each batch is padded to its
    longest."""

    min: SomeTokens = 1
    """Tokens of the shortest sequence, beside percentiles."""
    p50: Tokens = 0
    """Half of the sequences are no longer; 0: not said. Between two percentiles lengths are taken as evenly spread."""
    p90: Tokens = 0
    """Nine in ten sequences are no longer; 0: not said."""
    p95: Tokens = 0
    """19 in 20 sequences are no longer; 0: not said."""
    p99: Tokens = 0
    """99 in 100 sequences are no longer; 0: not said."""
    histogram: Annotated[Mapping[str, float], anything("lengths and their shares, {512: 0.7, 8192: 0.3}")] = field(
        default_factory=dict
    )
    """In place of percentiles: lengths and their shares, which add up to 1 (`{512: 0.6, 2048: 0.3, 8192: 0.1}`)."""
    batches: Annotated[tuple[int, ...], tokens(1)] = ()
    """In place of a distribution: the length of every batch of a run, in order."""
    pad_to_multiple_of: Annotated[int, whole(1, "tokens")] = 1
    """Batches are padded to a multiple of so many tokens."""
    steps: Annotated[int, whole(1, "steps", _MOST_STEPS)] = 2000
    """Optimizer steps whose batches are drawn and replayed; `batches` bring their own number."""
    seed: Annotated[int, whole(0)] = 0
    """The draw begins with it."""


PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Keys, and the share of sequences that are no longer."""


def tokens_of(text: str) -> int:
    """The tokens that a key of a histogram stands for (`512`, `4k`); 0 for what is not a number of tokens."""
    number = text[:-1] if text[-1:] in ("k", "K") else text
    if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number)):
        return 0
    return int(number) * (1024 if number != text else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoad:
    """A checkpoint is loaded before training: onto `cpu` or onto the `device`; its state dict is dropped."""

    map_location: Annotated[str, one_of("cpu", "device")] = "cpu"
    """Where the checkpoint's tensors are put."""
    kind: Annotated[str, one_of("state_dict", "full_state_dict", "full_state_dict_from_rank0", "dcp")] = "state_dict"
    """state_dict: torch.load and load_state_dict; full_state_dict: set_state_dict of a whole one, whose parts become
    the shards; full_state_dict_from_rank0: the same, of a file that rank 0 alone loads, and sends tensor by tensor
    (broadcast_from_rank0); dcp: torch.distributed.checkpoint.load into the shards"""
    optimizer: bool = False
    """The optimizer's state is loaded as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSave:
    """A checkpoint is saved after every `every` iterations, or after the last if none came before."""

    kind: Annotated[str, one_of("full_state_dict", "sharded_state_dict", "dcp", "dcp_async", "huggingface")] = (
        "full_state_dict"
    )
    """full_state_dict: gathered, torch.save on rank 0; sharded_state_dict: torch.save on each rank; dcp, dcp_async:
    torch.distributed.checkpoint.save, async_save; huggingface: gathered to rank 0, save_pretrained"""
    cpu_offload: bool = False
    """Of StateDictOptions: tensors go to the host one by one; a full state dict is then kept by rank 0 alone."""
    optimizer: bool = True
    """The optimizer's state is saved as well; without effect on huggingface."""
    every: Iterations = 100
    """After how many iterations it is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """An evaluation of one batch under no_grad after every `every` iterations."""

    micro_batch_size: Samples = 1
    """Samples of a rank in its batch."""
    every: Iterations = 100
    """After how many iterations it is evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What people call the job; no part of the plan's identity."""

    name: Text = ""
    """Of the job, for reports."""
    team: Text = ""
    """Whose job it is, for the metrics."""
    queue: Text = ""
    """Where it is submitted to, for the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input tensor of a micro-batch; `shape` is without the batch dim.

    `maximum` bounds the values of an integer input (number of classes, size of a vocabulary).
    """

    shape: Annotated[tuple[int, ...], whole(1)]
    """Sizes of the dims behind the batch dim."""
    dtype: Annotated[str, one_of(*FLOATING.names, "int64", "int32", "int16", "int8", "uint8", "bool")] = "float32"
    """Of its elements."""
    maximum: Count = 2
    """Values of an integer input lie below it: number of classes, size of a vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How the loss is computed. `model`: the model returns it itself, given labels."""

    name: Annotated[str, one_of("cross_entropy", "mse", "sum", "model")] = "cross_entropy"
    """model: the model returns it itself, given labels; sum: of all that the model returns."""
    dtype: Floating = "float32"
    """In which dtype the logits enter the loss."""
    chunks: Count = 1
    """Chunks of tokens whose logits are cast to `dtype` in turn, as torchtune does; 1: not chunked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Any class of torch.optim, with its own arguments."""

    name: Annotated[
        str,
        like(
            r"(?!(?:adam|sgd|adagrad|rmsprop|muon|fused_)[^A-Z.]*$)[^\W\d]\w*(\.\w+)?",
            "the name of a class of torch.optim, or such as bitsandbytes.AdamW8bit",
        ),
    ] = "AdamW"
    """A class of torch.optim, or of a package: bitsandbytes.AdamW8bit, torchao.AdamW8bit, transformers.Adafactor."""
    arguments: PlainData = field(default_factory=dict)
    """Any other key is an argument of the class: lr, foreach, fused, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Activation recomputation: `none`, `full` (each block), `every` (each n-th block), `selective` (per op)."""

    mode: Annotated[
        str, one_of("none", "full", "selective", "every", allowed="none, full, selective or {every: 2}")
    ] = "none"
    """What is recomputed in the backward instead of kept; a lone value, `recompute: full`."""
    every: Count = 1
    """Each n-th block, written `{every: 2}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """What runs under torch.compile, and with which of its arguments."""

    scope: Annotated[tuple[str, ...], one_of("model", "blocks", "loss", "optimizer")] = ()
    """model | blocks | loss | optimizer, one or several; by default blocks where the job shards, else the model"""
    mode: Annotated[str, one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")] = "default"
    """default | reduce-overhead | max-autotune | max-autotune-no-cudagraphs; the middle two capture CUDA graphs"""
    arguments: PlainData = field(default_factory=dict)
    """Any other key is an argument of torch.compile: fullgraph, dynamic, backend, ..."""

    @property
    def backend(self) -> str:
        """What compiles: torch's own by default."""
        return str(self.arguments.get("backend", "inductor"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """What one step takes in, computes and keeps."""

    micro_batch_size: Samples = 1
    """Samples that a rank takes through the model at once."""
    sequence_length: Tokens = 0
    """Tokens per sequence; 0 where `inputs` are given or the model takes no tokens. Of sequences that differ the
    longest: written `{p50: 512, p99: 4096, max: 8192}` or `{histogram: {512: 0.7, 8192: 0.3}}` it holds `lengths`."""
    lengths: Lengths | None = None
    """How long sequences are that are not all of one length; null: all are as long as `sequence_length`."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """Tensors that the model takes, by the names of its arguments; default: tokens, or the config's pictures."""
    padding: Annotated[str, one_of("none", "right")] = "none"
    """none: sequences of one length without an attention mask, as packed ones. right: batches with gaps after the
    shorter sequences, whose mask a transformers model gets; it then takes another attention kernel."""
    gradient_accumulation_steps: Annotated[int, whole(1, "micro-batches")] = 1
    """Micro-batches of one optimizer step; under a pipeline those of one schedule step."""
    precision: Annotated[str, one_of("none", "bf16_autocast", "fp16_autocast", "fsdp_mixed")] = "none"
    """How precision is mixed: by autocast (fp16 with a scaler), or by the policy of fully_shard (fsdp_mixed)."""
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    recompute: Recompute = field(default_factory=Recompute)
    gradient_clipping: NotNegative = 0.0
    """Largest norm; 0: not clipped."""
    zero_grad_set_to_none: bool = True
    """Gradients are dropped after the step; false: they are kept and filled with zeros."""
    checkpoint_load: CheckpointLoad | None = None
    checkpoint_save: CheckpointSave | None = None
    eval: Eval | None = None
    iterations: Iterations = 3
    """How many iterations are traced."""
    optimizer_in_backward: bool = False
    """Each parameter is updated, and its gradient dropped, as soon as it is accumulated."""
    activation_offload: bool = False
    """What the blocks save for their backward rests on the host (save_on_cpu, pinned)."""
    compile: Compile | None = None
    """What of the step is compiled; null or false: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the plan sees it; `name` is empty for one that the catalog does not have."""

    name: Text = ""
    """A name of the catalog, or as nvidia-smi, schedulers and people call it."""
    total_bytes: Annotated[int, size(MIB, "a size from 1MiB to 4TiB, such as 79.1GiB")] = 0
    """What torch.cuda.get_device_properties says; a named GPU brings it along."""
    arch: Annotated[str, like(r"sm_[1-9][0-9]{1,2}[a-z]?|gfx[0-9a-f]{3,4}", "such as sm_90 or gfx942")] = ""
    """Its compute capability; a named GPU brings it along."""

    @property
    def target(self) -> str:
        """Whose kernels are traced: the architecture, of a MIG slice with its multiprocessors (`sm_90/16`)."""
        known = catalog.by_name(self.name) if self.name else None
        return f"{self.arch}/{known.multiprocessors}" if known is not None and known.slice else self.arch

    @property
    def written(self) -> str | dict[str, str | int]:
        """As a spec says it: the name, or the figures of one without a name."""
        return self.name or {"total_bytes": self.total_bytes, "arch": self.arch}


def multiprocessors_of(target: str) -> int:
    """Those that a target names; of a whole GPU more than any."""
    return int(target.partition("/")[2] or 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines that the job runs on."""

    nodes: Count = 1
    """Machines of the job."""
    gpus_per_node: Count = 1
    """GPUs of each of them; one rank to a GPU."""
    gpu: Gpu = field(default_factory=Gpu)
    """Its name, or its figures; null for a plan without verdict."""
    held_by_others_bytes: Annotated[int, size(0, "a size from 0 to 4TiB, such as 2GiB")] = 0
    """Bytes of each GPU that other processes hold; taken off the capacity."""
    gpu_fraction: Annotated[float, number("a number above 0, at most 1", 0, 1)] = 1.0
    """Share of each GPU's memory that the job may use, its CUDA context included: KAI's gpu-fraction, HAMi's
    gpumem-percentage. Of what CUDA reports, which is without the driver's reserve."""
    gpu_memory: Annotated[int, size(0, "a size from 0 to 4TiB, such as 20GiB")] = 0
    """Bytes of each GPU that the job may use, its CUDA context included: HAMi's gpumem, KAI's gpu-memory, the limit of
    CUDA's Multi-Process Service (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT); 0: all."""
    host_memory: HostBytes = 0
    """Bytes of each node's main memory that the job may use, in a container its limit; 0: not said, and not judged."""

    @property
    def ranks(self) -> int:
        """Of the job: one to each GPU."""
        return self.nodes * self.gpus_per_node

    @property
    def capacity_bytes(self) -> int:
        """Of each GPU: the share of the job, or what others leave of it."""
        total = self.gpu.total_bytes
        return min(total - self.held_by_others_bytes, int(total * self.gpu_fraction), self.gpu_memory or total)

    @property
    def gpu_share(self) -> float:
        """As how much of a GPU each of its GPUs counts: less than 1 where others may have the rest."""
        total = self.gpu.total_bytes
        return min(self.gpu_fraction, self.gpu_memory / total if self.gpu_memory and total else 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the job will run with; the CUDA context and the workspaces hinge on it."""

    torch: Annotated[str, like(_VERSION, "a version such as 2.13", 60)] = field(default_factory=torch_at_hand)
    """Version of PyTorch; by default that which plans the job."""
    cuda: Annotated[str, like(_VERSION, "a version such as 13.0", 60)] = NEWEST_CUDA
    """Version of CUDA that PyTorch was built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Settings of PyTorch's caching allocator."""

    conf: Text = ""
    """PYTORCH_ALLOC_CONF, as written there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Training by transformers' Trainer, said in the words of the classes that own them: each a file or its content."""

    arguments: PlainData = field(default_factory=dict)
    """TrainingArguments, as `to_json_string()` writes them; `deepspeed` and `fsdp_config` may name a file."""
    accelerate: PlainData = field(default_factory=dict)
    """What `accelerate config` saves: `accelerate launch --config_file` starts the program."""
    peft: PlainData = field(default_factory=dict)
    """The config of an adapter (adapter_config.json, or its folder), which get_peft_model adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A whole job: everything that decides what memory each rank takes."""

    metadata: Metadata = field(default_factory=Metadata)
    model: Model
    train: Train = field(default_factory=Train)
    trainer: Trainer | None = None
    parallel: Parallel = field(default_factory=Parallel)
    cluster: Cluster = field(default_factory=Cluster)
    software: Software = field(default_factory=Software)
    allocator: Allocator = field(default_factory=Allocator)

    @property
    def runs_apart(self) -> bool:
        """Whether a process of its own runs it, behind walls where others ask for it: code of its own, or the program
        of `trainer`."""
        return bool(self.model.factory) or self.trainer is not None


CHECKS: Mapping[tuple[type, str], Check] = {
    (kind, name): check
    for kind in list(vars().values())
    if isinstance(kind, type) and is_dataclass(kind) and kind is not Check
    for name, check in checks_of(kind).items()
}
"""What each value of a spec may be, by its section and its name."""
