"""The table of packages with kernels of their own: what stands for them, and from which version and files it is known.

A package without modules is known by its name only: a program that needs it is refused with how to describe it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

_FLASH_2 = "planner.paper.outside.flash_attention_2"
_FLASH_3 = "planner.paper.outside.flash_attention_3"
_PADDING = "planner.paper.outside.flash_attention_padding"
_ROTARY = "planner.paper.outside.flash_attention_rotary"
_LOSS = "planner.paper.outside.flash_attention_loss"
_TRANSFORMER_ENGINE = "planner.paper.outside.transformer_engine.extension"
_APEX_NORMS = "planner.paper.outside.apex_normalization"
_APEX_OPTIMIZERS = "planner.paper.outside.apex_optimizers"
_NORMS = ("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm")
_FUNCTIONS = (
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
)  # fmt: skip
_FUNCTIONS_3 = ("flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")


@dataclass(frozen=True, slots=True)
class Offered:
    """One module of a stand-in: the module of planner that has its names (empty: a package of other modules)."""

    by: str = ""
    names: Sequence[str] = ()
    table: str = ""
    """A mapping of it that has them all, where they are too many to be told here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package as pip names it, and its top-level module."""

    name: str
    module: str
    version: str = ""
    """Whose allocations are known."""
    source: str = ""
    """Files of that version."""
    modules: Mapping[str, Offered] = field(default_factory=dict)
    extension: Mapping[str, Offered] = field(default_factory=dict)
    """Compiled modules that Python code of the package imports, where that is installed."""
    from_index: Sequence[str] = ()
    """What to install where planner runs (`pip install`), if that needs no GPU."""
    by_hand: str = ""
    """The same where that takes more than its name."""

    @property
    def instead(self) -> str:
        """What to install, for people; empty where nothing can be."""
        return self.by_hand or " and ".join(self.from_index)

    @property
    def is_modelled(self) -> bool:
        """Whether something stands for it where it is not installed."""
        return bool(self.modules)

    @property
    def has_known_kernels(self) -> bool:
        """Whether what it launches is known, where it or its Python part is installed at least."""
        return bool(self.modules or self.extension)


def _named(name: str, module: str, *from_index: str) -> Package:
    return Package(name=name, module=module, from_index=from_index)


PACKAGES: tuple[Package, ...] = (
    Package(
        name="flash-attn",
        module="flash_attn",
        version="2.8.4",
        source="csrc/flash_attn/flash_api.cpp, flash_attn/{flash_attn_interface,bert_padding}.py, "
        "flash_attn/layers/rotary.py, flash_attn/ops/triton/{cross_entropy,rotary}.py, flash_attn/losses",
        modules={
            "flash_attn": Offered(_FLASH_2, _FUNCTIONS),
            "flash_attn.flash_attn_interface": Offered(
                _FLASH_2,
                (*_FUNCTIONS, "_flash_attn_forward", "_flash_attn_backward", "_flash_attn_varlen_forward",
                 "_flash_attn_varlen_backward"),
            ),
            "flash_attn.bert_padding": Offered(
                _PADDING, ("index_first_axis", "index_put_first_axis", "pad_input", "unpad_input")
            ),
            "flash_attn.layers": Offered(),
            "flash_attn.layers.rotary": Offered(_ROTARY, ("apply_rotary_emb", "apply_rotary_emb_func")),
            "flash_attn.losses": Offered(),
            "flash_attn.losses.cross_entropy": Offered(_LOSS, ("CrossEntropyLoss",)),
            "flash_attn.ops": Offered(),
            "flash_attn.ops.triton": Offered(),
            "flash_attn.ops.triton.cross_entropy": Offered(_LOSS, ("cross_entropy_loss",)),
            "flash_attn.ops.triton.rotary": Offered(_ROTARY, ("apply_rotary",)),
        },
        extension={
            "flash_attn_2_cuda": Offered(
                "planner.paper.outside.flash_attention_2_extension",
                ("fwd", "varlen_fwd", "bwd", "varlen_bwd", "fwd_kvcache"),
            )
        },
        by_hand="its Python part, with FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE in the environment of pip",
    ),
    Package(
        name="flash-attn-3",
        module="flash_attn_interface",
        version="3.0.0",
        source="hopper/flash_api.cpp, hopper/flash_attn_interface.py at the commit 0251105",
        modules={"flash_attn_interface": Offered(_FLASH_3, _FUNCTIONS_3)},
    ),
    Package(
        name="kernels",
        module="kernels",
        version="0.18.2",
        source="src/kernels/load.py",
        modules={"kernels": Offered("planner.running.outside.hub_kernels", ("get_kernel",))},
        from_index=("kernels",),
    ),
    Package(
        name="apex",
        module="apex",
        version="0.1",
        source="apex/normalization/fused_layer_norm.py, csrc/layer_norm_cuda_kernel.cu, apex/optimizers/fused_adam.py "
        "at the commit 6424da3",
        modules={
            "apex": Offered(),
            "apex.contrib": Offered(),
            "apex.contrib.layer_norm": Offered(),
            "apex.contrib.layer_norm.layer_norm": Offered(_APEX_NORMS, ("FastLayerNormFN",)),
            "apex.normalization": Offered(_APEX_NORMS, _NORMS),
            "apex.contrib.nccl_allocator": Offered(),
            "apex.normalization.fused_layer_norm": Offered(
                _APEX_NORMS, (*_NORMS, "FusedLayerNormAffineFunction", "fused_layer_norm_affine")
            ),
            "apex.optimizers": Offered(_APEX_OPTIMIZERS, ("FusedAdam",)),
            "apex.multi_tensor_apply": Offered(_APEX_OPTIMIZERS, ("multi_tensor_applier", "MultiTensorApply")),
        },
        extension={
            "amp_C": Offered(
                _APEX_OPTIMIZERS,
                ("multi_tensor_adam", "multi_tensor_scale", "multi_tensor_axpby", "multi_tensor_sgd"),
            ),
            "fused_weight_gradient_mlp_cuda": Offered(
                "planner.paper.outside.apex_weight_gradients", ("wgrad_gemm_accum_fp16", "wgrad_gemm_accum_fp32")
            ),
        },
    ),
    _named("bitsandbytes", "bitsandbytes", "bitsandbytes"),
    _named("causal-conv1d", "causal_conv1d"),
    _named("deep-gemm", "deep_gemm"),
    _named("flash-linear-attention", "fla", "flash-linear-attention", "triton"),
    _named("grouped-gemm", "grouped_gemm"),
    _named("liger-kernel", "liger_kernel", "liger-kernel", "triton"),
    _named("mamba-ssm", "mamba_ssm"),
    _named("sageattention", "sageattention"),
    Package(
        name="transformer-engine",
        module="transformer_engine",
        version="2.11.0",
        source="transformer_engine/pytorch/csrc/extensions, transformer_engine/common/{fused_attn,normalization}",
        extension={"transformer_engine_torch": Offered(_TRANSFORMER_ENGINE, table="EXTENSION")},
        by_hand="its Python part (pip install --no-deps transformer-engine; and einops, onnx, onnxscript)",
    ),
    _named("xformers", "xformers"),
)  # fmt: skip

BY_MODULE: Mapping[str, Package] = MappingProxyType({each.module: each for each in PACKAGES})


def canonical(name: str) -> str:
    """A name as pip compares names (PEP 503)."""
    return name.strip().lower().replace("_", "-").replace(".", "-")


BY_NAME: Mapping[str, Package] = MappingProxyType({canonical(each.name): each for each in PACKAGES})
