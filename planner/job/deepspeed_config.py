"""DeepSpeed's ds_config.json: what of it decides memory, and the config that its engine is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import hf_config
from planner.job.json_text import packaged_json
from planner.job.nodes import Node, did_you_mean
from planner.job.schema import AS_BUILT, Job, Optimizer

# Keys, their defaults and what they do are those of DeepSpeed 0.19.8 (deepspeed/runtime/config.py, zero/config.py,
# zero/offload_config.py, precision_config.py, engine.py). Its bucket sizes are numbers of elements. `"auto"` is
# resolved from the job as transformers' Trainer does (integrations/deepspeed.py): its hidden size squared is a bucket.
VERSION = "0.19.8"
_PLACE = "parallel.deepspeed"
_BUCKET = 500_000_000
_ADAMS = {"adam": "Adam", "adamw": "AdamW"}
_TESTED = ("Adam", "AdamW", "Adagrad")
_DTYPES = {"fp32": "float32", "fp16": "float16", "bfp16": "bfloat16", "bf16": "bfloat16"}

_KEYS = packaged_json("deepspeed_keys.json")
_UNDERSTOOD, WITHOUT_EFFECT, _ZERO_UNDERSTOOD, ZERO_WITHOUT_EFFECT, _ZERO_OF_STAGE_3 = (
    tuple(" ".join(_KEYS[kind]).split())
    for kind in ("understood", "without_effect", "zero_understood", "zero_without_effect", "zero_of_stage_3")
)
"""Keys without effect change no tensor on the device, or are of other stages: since torch has all_gather_into_tensor
DeepSpeed gathers the updated parameters in place and at once, whatever `allgather_bucket_size` is (runtime/utils.py).
Stage 3 is planned with its own keys, whatever their value."""
_ZERO_AS_IT_IS: Mapping[str, Any] = _KEYS["zero_as_it_is"]
"""Keys that matter and are planned with this value alone, DeepSpeed's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConfig:
    """What a config means for one job, with every default and every `"auto"` resolved."""

    stage: int
    dtype: str
    """Of the parameters, and of their gradients."""
    reduce_bucket_elements: int = _BUCKET
    offload: bool = False
    """The partition of the optimizer rests on the host."""
    offload_param: bool = False
    """Those of the parameters do."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """That of the config, or else of the job."""


def read(node: Node, folder: Path | None) -> Mapping[str, Any] | None:
    """The content of a config: from a file relative to `folder`, or as it stands in the spec. Raises SpecError."""
    if node.value is None:
        return None
    allowed = "the path of a ds_config.json, or its content as a mapping"
    if isinstance(node.value, str):
        path = hf_config.named_path(node, folder)
        config = hf_config.read_named_json(path, node)
        if not isinstance(config, dict):
            raise SpecError("the config is not a JSON object", allowed=allowed, place=str(path))
        return config
    if isinstance(node.value, dict):
        return {key: child.plain() for key, child in node.value.items()}
    raise node.is_error(allowed=allowed)


def zero_of(job: Job, place: str = _PLACE) -> ZeroConfig:
    """What the job's config means. Raises SpecError at `place` for what DeepSpeed or the planner refuses."""
    config = Part(job.parallel.deepspeed or {}, "", place)
    zero = config.part("zero_optimization")
    bf16, fp16 = (config.part("bf16") if config.has("bf16") else config.part("bfloat16")), config.part("fp16")
    is_bf16 = bf16.flag("enabled", False, auto=job.model.parameter_dtype == "bfloat16")
    is_fp16 = fp16.flag("enabled", False, auto=job.model.parameter_dtype == "float16")
    if is_bf16 and is_fp16:
        raise fp16.error("enabled", "is true beside bf16", allowed="one of the two")
    dtype = "bfloat16" if is_bf16 else "float16" if is_fp16 else "float32"
    if dtype == "float32" and job.model.parameter_dtype not in (dtype, AS_BUILT):
        raise config.error(
            "bf16.enabled",
            f"is not set, and model.parameter_dtype is {job.model.parameter_dtype}: DeepSpeed then takes float32 alone",
            remedy='write {"bf16": {"enabled": true}}',
        )
    stage = zero.values.get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise zero.error("stage", f"is {_format_value(stage)}", allowed="1, 2 or 3", remedy=_format_resolved(stage))
    if stage == 0:
        raise zero.error(
            "stage",
            "is 0: nothing is divided",
            allowed="1, 2 or 3",
            remedy="delete parallel.deepspeed: dp_replicate alone is data parallelism",
        )
    offload = zero.part("offload_optimizer")
    device = offload.values.get("device", "none")
    if device not in ("none", "cpu"):
        raise offload.error("device", f"is {_format_value(device)}, which is not planned", allowed="none, cpu")
    for key, only in (("ratio", 1.0), ("super_offload", False)):
        if offload.values.get(key, only) != only:
            raise offload.error(
                key, f"is {_format_value(offload.values[key])}, which is not planned", allowed=str(only)
            )
    offloads = device == "cpu"
    _check_accumulation(config, dtype, stage, offload=offloads)
    chosen = _optimizer(config, job, offload=offloads)
    for part, key in ((offload, "pin_memory"), (zero, "reduce_scatter"), (zero, "overlap_comm")):
        part.flag(key, False)
    config.dtype("communication_data_type")
    if not zero.flag("compute_grad_norm", True) and (offloads or job.train.gradient_clipping):
        raise zero.error("compute_grad_norm", "is false, and clipping or offload_optimizer needs the norm")
    return ZeroConfig(
        stage=int(stage),
        dtype=dtype,
        reduce_bucket_elements=elements(zero, "reduce_bucket_size", job),
        offload=offloads,
        offload_param=zero.part("offload_param").values.get("device", "none") != "none",
        optimizer=chosen,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A mapping of the config, which knows its path for messages."""

    values: Mapping[str, Any]
    path: str
    place: str

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, problem: str, *, allowed: str = "", remedy: str = "") -> SpecError:
        return SpecError(
            f"the DeepSpeed config's {self.name(key)} {problem}", allowed=allowed, remedy=remedy, place=self.place
        )

    def part(self, key: str) -> Part:
        values = self.values.get(key)
        if values is not None and not isinstance(values, Mapping):
            raise self.error(key, f"is {values!r}", allowed="a mapping")
        return Part(values or {}, self.name(key), self.place)

    def flag(self, key: str, default: bool, *, auto: bool | None = None) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if value == "auto" and auto is not None:
            return auto
        if not isinstance(value, bool):
            raise self.is_error(key, allowed="true or false")
        return value

    def dtype(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in _DTYPES:
            raise self.is_error(key, allowed=", ".join(_DTYPES))
        return _DTYPES[value]

    def is_error(self, key: str, *, allowed: str) -> SpecError:
        """The fault that a value is what it is."""
        value = self.values.get(key)
        return self.error(key, f"is {_format_value(value)}", allowed=allowed, remedy=_format_resolved(value))


def _format_value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _format_resolved(value: Any) -> str:
    return "write the value: nothing in a job says it, nor does transformers resolve it" if value == "auto" else ""


def _check_accumulation(config: Part, dtype: str, stage: int, *, offload: bool) -> None:
    types = config.part("data_types")
    for key in sorted(types.values.keys() - {"grad_accum_dtype", "param_dtype", "buffer_dtype"}):
        raise types.error(key, "is not planned", allowed="grad_accum_dtype")
    accumulation = types.dtype("grad_accum_dtype")
    is_in_fp32 = accumulation == "float32" and (stage == 3 or (stage == 2 and not offload))
    if is_in_fp32 or accumulation in (None, dtype):
        return
    where = "with offload_optimizer" if stage == 2 else "in stage 1 (of bfloat16: BF16_Optimizer)"
    raise types.error(
        "grad_accum_dtype",
        f"is {accumulation} beside parameters in {dtype}, which {where} is not planned",
        allowed=f"{dtype}, DeepSpeed's default; or fp32 in stage 2 on the device",
    )


def elements(
    zero: Part, key: str, job: Job, *, least: int = 1, automatic: Callable[[int], int] | None = lambda hidden: hidden**2
) -> int:
    """A size of the config; `automatic` is what `"auto"` is for a hidden size. Raises SpecError."""
    value = zero.values.get(key, _BUCKET)
    if value == "auto" and automatic is not None:
        return automatic(_hidden_size(zero, key, job))
    auto = ', or "auto"' if automatic is not None else ""
    if isinstance(value, str) and value != "auto":
        raise zero.error(
            key,
            f"is {_format_value(value)}: DeepSpeed's sizes are numbers of elements, without a unit",
            allowed=f"a whole number such as 500000000 (of bfloat16: 1000000000 bytes){auto}",
        )
    if isinstance(value, bool | str) or not isinstance(value, int | float) or value < least or value != value // 1:
        raise zero.is_error(key, allowed=f"a whole number of elements from {least}{auto}")
    return int(value)


def _hidden_size(zero: Part, key: str, job: Job) -> int:
    """As transformers' Trainer finds it: the model's own, the largest of several, or that of its text model."""
    if job.model.decoder is not None:
        return job.model.decoder.hidden
    config = job.model.hf_config or {}
    size, sizes, text = config.get("hidden_size"), config.get("hidden_sizes"), config.get("text_config")
    for value in (size, sizes):
        if isinstance(value, int):
            return value
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            return int(max(value))
    if isinstance(text, Mapping) and isinstance(text.get("hidden_size"), int):
        return int(text["hidden_size"])
    raise zero.error(key, 'is "auto", and the model has no hidden_size', remedy="write a number of elements")


def _optimizer(config: Part, job: Job, *, offload: bool) -> Optimizer:
    """DeepSpeed's FusedAdam keeps what torch's fused kernel keeps, and steps without temporaries as it does."""
    written, own = config.part("optimizer"), job.train.optimizer
    if not written.values:
        if offload and config.flag("zero_force_ds_cpu_optimizer", True):
            raise config.error(
                "optimizer",
                "is missing: DeepSpeed refuses an optimizer of the program's own beside offload_optimizer",
                remedy='add {"optimizer": {"type": "AdamW"}}, or {"zero_force_ds_cpu_optimizer": false}',
            )
        if own.name not in _TESTED and not config.flag("zero_allow_untested_optimizer", False):
            raise config.error(
                "zero_allow_untested_optimizer",
                f"is not true, and train.optimizer is {own.name}",
                allowed=", ".join(_TESTED),
                remedy='add {"zero_allow_untested_optimizer": true}',
            )
        return own
    kind = written.values.get("type")
    if not isinstance(kind, str) or kind.lower() not in _ADAMS:
        raise written.error(
            "type",
            f"is {_format_value(kind)}, which is not planned",
            allowed="Adam, AdamW; or no optimizer: train.optimizer",
        )
    known = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    params = written.part("params").values
    arguments = {key: value for key, value in own.arguments.items() if key in known}
    arguments |= {key: params[key] for key in known if params.get(key, "auto") != "auto"}
    fused = {"fused": True} if not offload and params.get("torch_adam") is not True else {}
    return Optimizer(name=_ADAMS[kind.lower()], arguments={**arguments, **fused})


def check_keys(config: Mapping[str, Any], place: str) -> None:
    """Raises SpecError for keys whose effect is not known, and for values that are not planned."""
    top = Part(config, "", place)
    for key, value in config.items():
        if key in _UNDERSTOOD or key in WITHOUT_EFFECT or _is_off(value):
            continue
        raise top.error(
            key,
            "is not planned: what it changes in memory is not known here",
            allowed=", ".join(_UNDERSTOOD) + "; without effect: " + ", ".join(WITHOUT_EFFECT),
            remedy=did_you_mean(key, [*_UNDERSTOOD, *WITHOUT_EFFECT]),
        )
    zero = top.part("zero_optimization")
    for key, value in zero.values.items():
        plain = key.removeprefix("stage3_")
        if key in _ZERO_UNDERSTOOD or plain in ZERO_WITHOUT_EFFECT or key == "stage3_gather_fp16_weights_on_model_save":
            continue
        if key in _ZERO_OF_STAGE_3 and zero.values.get("stage") == 3:
            continue
        if key not in _ZERO_AS_IT_IS:
            known = [*_ZERO_UNDERSTOOD, *_ZERO_AS_IT_IS, *ZERO_WITHOUT_EFFECT]
            raise zero.error(key, f"is not a key of DeepSpeed {VERSION}", remedy=did_you_mean(key, known))
        only = _ZERO_AS_IT_IS[key]
        if value != only and not (_is_off(value) and _is_off(only)):
            remedy = _format_resolved(value)
            if key == "cpu_offload":
                remedy = 'write {"offload_optimizer": {"device": "cpu"}}'
            shown = str(only).lower() if isinstance(only, bool) else "none" if only is None else str(only)
            raise zero.error(key, "is not planned with this value", allowed=shown, remedy=remedy)


def _is_off(value: Any) -> bool:
    """Nothing, false, or a part that is disabled."""
    if isinstance(value, Mapping):
        return value.get("enabled") is False or value.get("device") == "none" or all(map(_is_off, value.values()))
    return value is None or value is False


# Sizes are numbers of elements (DeepSpeed 0.19.8, deepspeed/runtime/zero/config.py). `"auto"` is what transformers'
# Trainer makes of it (5.23, integrations/deepspeed.py): of the hidden size `h`, a reduce bucket of h * h, a prefetch
# bucket of 0.9 * h * h, and parameters of up to 10 * h elements are not divided.
_SIZES = {
    "prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "param_persistence_threshold": lambda hidden: 10 * hidden,
    "model_persistence_threshold": None,
    "max_live_parameters": None,
    "max_reuse_distance": None,
    "sub_group_size": None,
}
"""Keys in elements, each with what `"auto"` is; None where transformers resolves none."""
_ENGINE = ("communication_data_type", "data_types", "gradient_predivide_factor", "prescale_gradients")


def check(job: Job, place: str) -> None:
    """Raises SpecError at `place` for what is refused in stage 3."""
    zero = Part(job.parallel.deepspeed or {}, "", place).part("zero_optimization")
    offload = zero.part("offload_param")
    device = offload.values.get("device", "none")
    if device not in ("none", "cpu"):
        raise offload.error("device", f'is "{device}", which is not planned', allowed="none, cpu")
    offload.flag("pin_memory", True)
    if zero.values.get("compute_grad_norm") is False:
        raise zero.error("compute_grad_norm", "is false", allowed="true in stage 3, as DeepSpeed has it")
    for key in ("module_granularity_threshold", "stage3_module_granularity_threshold", "leaf_module"):
        if zero.values.get(key):
            raise zero.error(key, "is not planned: modules that are gathered as one", remedy="delete it")
    sizes(zero, job)


def sizes(zero: Part, job: Job) -> dict[str, int]:
    """The keys in elements that the config names, by its own names for them. Raises SpecError."""
    return {
        key: elements(zero, key, job, least=0, automatic=automatic)
        for plain, automatic in _SIZES.items()
        for key in (plain, f"stage3_{plain}")
        if key in zero.values
    }


def engine_config(job: Job) -> dict[str, Any]:
    """For `deepspeed.initialize` with an optimizer of torch. Raises SpecError as `deepspeed_config.zero_of` does."""
    resolved = zero_of(job)
    config: Mapping[str, Any] = job.parallel.deepspeed or {}
    zero = Part(config, "", "parallel.deepspeed").part("zero_optimization")
    given = {key: value for key, value in zero.values.items() if value is not None and value != "auto"}
    made: dict[str, Any] = {key: config[key] for key in _ENGINE if config.get(key) is not None}
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if resolved.dtype == dtype:
            written = config.get(name) or (config.get("bfloat16") if name == "bf16" else None) or {}
            made[name] = {**{key: value for key, value in written.items() if value != "auto"}, "enabled": True}
    return {
        **made,
        "train_micro_batch_size_per_gpu": job.train.micro_batch_size,
        "gradient_accumulation_steps": job.train.gradient_accumulation_steps,
        "gradient_clipping": job.train.gradient_clipping,
        "zero_optimization": {**given, **sizes(zero, job), "reduce_bucket_size": resolved.reduce_bucket_elements},
        # The optimizer is torch's, whose fused kernel keeps what DeepSpeed's own keeps.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
