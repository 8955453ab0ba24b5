"""What is trained, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The built-in Llama-shaped decoder for quick what-ifs."""

    layers: int
    """Blocks of attention and feed-forward."""
    hidden: int
    """Width of the residual stream; a multiple of `heads`."""
    heads: int
    """Heads of the queries; a multiple of `kv_heads`."""
    kv_heads: int
    """Heads of the keys and values."""
    ffn: int
    """Width inside of the gated feed-forward."""
    vocab: int
    """Entries of the embedding and of the head."""
    tie_embeddings: bool = False
    """Embedding and head are one parameter."""
    head_dim: int = 0
    """Width of a head; 0: hidden / heads."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys, as Qwen3 has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank layers that are trained in place of the model: LoRA, by peft."""

    kind: str = "lora"
    """qlora: beside a model in four bits (nf4, double quantization)."""
    r: int = 8
    """The rank of the layers."""
    alpha: int = 8
    """Scales what the layers add; without effect on memory."""
    dropout: float = 0.0
    """Before the layers; above 0 it keeps a mask."""
    target_modules: tuple[str, ...] = ()
    """Names of the modules that are adapted; empty: those that peft knows for the architecture."""
    load: str = "layers"
    """Of qlora. layers: each layer is packed as it is loaded, as transformers does; whole: all of the model is on the
    device in `parameter_dtype` before it is packed."""


AS_BUILT = "as_built"
"""The `parameter_dtype` of a factory whose parameters keep the dtypes that it gave them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Exactly one of `hf_config`, `factory`, `decoder` is given."""

    hf_config: Mapping[str, Any] | None = None
    """A transformers config: a well-known model's name, a path, or its content, which is what is kept."""
    factory: str = ""
    """`module:callable`, any callable that returns an nn.Module."""
    factory_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    factory_path: str = ""
    """A folder put in front of sys.path for the factory; default: the spec file's folder."""
    decoder: Decoder | None = None
    head: str = ""
    """Which transformers head (`causal_lm`, `masked_lm`, ...); empty: by architecture."""
    blocks: str = ""
    """Pattern of the module paths that are wrapped and recomputed; empty: found."""
    parameter_dtype: str = ""
    """A dtype that all parameters are cast to, or for a factory `as_built`: each keeps its own. Not said: `as_built`
    for a factory, float32 for all else."""
    attention: str = "sdpa"
    """The `attn_implementation` of a transformers model: sdpa or eager."""
    use_cache: bool = False
    """Whether a transformers model keeps past_key_values while it trains; false, as transformers' Trainer has it,
    whatever the config says. They live as long as the model's output: see `train.loss.keep_output`."""
    adapter: Adapter | None = None
    """Train an adapter alone, the model frozen; for a transformers config."""

    def __post_init__(self) -> None:
        if not self.parameter_dtype:
            object.__setattr__(self, "parameter_dtype", AS_BUILT if self.factory else "float32")
