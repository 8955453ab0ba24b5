"""A job in a few words: what options, `--set key=value` and `r=16,alpha=32` mean as values of a spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import deepspeed_config, foreign_words, hf_config, named_gpus, short_forms, spec_keys
from planner.job.field_checks import CHECKS
from planner.job.foreign_words import OPTIMIZERS
from planner.job.layout import AXES
from planner.job.nodes import Node, below, did_you_mean, node_from_data, placed
from planner.job.schema import Gpu, Train
from planner.job.size_limits import MOST_DEPTH, MOST_HOST_BYTES
from planner.job.yaml_text import read_yaml
from planner.units import parse_bytes

_INLINED = {"model.hf_config": hf_config.read, "parallel.deepspeed": deepspeed_config.read}
"""Keys that may name a file, with what reads it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value for one key; the node knows which option said it."""

    path: str
    node: Node


def parse(written: str) -> Setting:
    """The key and value of `key=value`, the value typed as in YAML. Raises SpecError."""
    place = f"--set {written[:80]}"
    path, equals, text = written.partition("=")
    path = path.strip()
    if not equals or not path or "" in path.split("."):
        raise SpecError(
            f"{written[:200]!a} is no key=value",
            allowed="a dotted key of the spec and its value, such as train.micro_batch_size=4",
            remedy="write --set KEY=VALUE, in quotes where the value has spaces",
            place="--set",
        )
    return Setting(path, placed(_value(text, place), path, place))


def setting(path: str, value: object, place: str) -> Setting:
    """A value that an option stands for."""
    return Setting(path, node_from_data(value, place, path))


def with_settings(document: Node, settings: list[Setting], folder: Path | None) -> Node:
    """The document with these values in the place of its own, one after the other; what it refers to starts at
    `folder`. Raises SpecError for a key below a value that has none."""
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    for each in settings:
        if each.path.count(".") > MOST_DEPTH:
            raise SpecError(
                f"{each.path[:80]!a}... has {each.path.count('.') + 1} parts",
                allowed=f"a key of the spec, at most {MOST_DEPTH} deep",
                place=each.node.place,
            )
        path = "cluster.gpu" if each.path == "cluster.gpu.name" else each.path  # its figures change with the name
        document = _with(document, path.split("."), each.node, folder)
    return document


def _value(text: str, place: str) -> Node:
    if not text.strip():
        raise SpecError("there is no value", allowed='a value as in YAML; "" for an empty text', place=place)
    try:
        return read_yaml(text, place)
    except SpecError as error:
        error.place = place
        raise SpecError(error.problem, allowed=error.allowed, remedy=error.remedy, place=place) from None


def _with(node: Node, keys: list[str], value: Node, folder: Path | None) -> Node:
    if not keys:
        return value
    known = spec_keys.by_path().get(node.path)
    if known is not None and known.section is None and not spec_keys.takes_a_mapping(known):
        raise _without_keys(node.path, value)
    children = _children(node, value, folder)
    path = below(node.path, keys[0])
    child = children.get(keys[0], Node({}, path, value.place, value.place))
    return replace(node, value={**children, keys[0]: _with(child, keys[1:], value, folder)})


def _children(node: Node, value: Node, folder: Path | None) -> dict[str, Node]:
    """What stands below a value, its short form written out."""
    if node.value is None:
        return {}
    if isinstance(node.value, str) and node.path in _INLINED:
        return node_from_data(_INLINED[node.path](node, folder), node.place, node.path).mapping()
    known = spec_keys.by_path().get(node.path)
    if known is not None and (short := spec_keys.short_key(known)) and not isinstance(node.value, dict | list):
        return {short: replace(node, path=below(node.path, short))}
    if isinstance(node.value, dict):
        return node.value
    if known is not None and known.section is not None:
        written = short_forms.written_out(known.section, node).value
        if isinstance(written, dict):
            return written
    raise _without_keys(node.path, value)


def _without_keys(path: str, value: Node) -> SpecError:
    return SpecError(
        f"{path} is a value, and has no keys below it",
        allowed=f"--set {path}=VALUE",
        remedy="set the whole value",
        place=value.place,
    )


_COUNTS = {"r": "r", "rank": "r", "alpha": "alpha", "lora_alpha": "alpha"}
_TARGETS = ("target", "targets", "target_modules")


def adapter_of(kind: str, text: str, place: str) -> dict[str, Any]:
    """`model.adapter` as a spec writes it. Raises SpecError for a word that is not understood."""
    found: dict[str, Any] = {"kind": kind}
    for part in text.replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if not part:
            continue
        if not equals and part.isdecimal():
            key, value = "r", part
        if key in _COUNTS and value.isdecimal() and len(value) < 10:
            found[_COUNTS[key]] = int(value)
        elif key == "dropout" and value.replace(".", "", 1).isdecimal() and len(value) < 20:
            found["dropout"] = float(value)
        elif key in _TARGETS and value:
            found["target_modules"] = [each for each in value.split("+") if each]
        else:
            raise SpecError(
                f"{part[:80]!a} is nothing of an adapter",
                allowed="r=16, alpha=32, dropout=0.05, target=q_proj+v_proj, with commas between them",
                remedy=f"write {place} r=16; the job or the model stands before the options",
                place=place,
            )
    return found


REST = "rest"
"""A degree: the GPUs that no other axis takes."""
PRECISIONS = ("bf16", "fp16", "fp32")
_USUAL_TOKENS = 2048
_WITHOUT_BF16 = ("sm_70", "sm_75")
"""Volta and Turing have no bfloat16 in their tensor cores (CUDA C++ programming guide, compute capabilities)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorthand:
    """The words; each may be absent."""

    gpus: str = ""
    """`4xH100`, as planner.job.named_gpus reads it."""
    gpu: str = ""
    sequence_length: str = ""
    """A number of tokens, or such as `4k`."""
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    lora: str | None = None
    """`r=16,alpha=32,target=q_proj+v_proj`, or empty; also of the next two."""
    qlora: str | None = None
    dora: str | None = None
    degrees: Mapping[str, str] = field(default_factory=dict)
    """Axis -> a number, or REST."""
    zero: int | None = None
    """The stage of DeepSpeed's ZeRO."""
    precision: str = ""
    """bf16, fp16 or fp32, mixed as the kind of parallelism mixes it; or as a spec writes it."""
    optimizer: str = ""
    recompute: str = ""
    offload: bool = False

    @classmethod
    def of_words(cls, words: Any) -> Shorthand:
        """Of an object whose attributes have the words as people write them: options, or the body of a request."""
        degrees = {"dp_shard": words.fsdp, "dp_replicate": words.ddp}
        degrees |= {axis: getattr(words, axis) for axis in ("tp", "pp", "cp", "ep")}
        return cls(
            gpus=words.gpus,
            gpu=words.gpu,
            sequence_length=words.seq,
            micro_batch_size=words.batch,
            gradient_accumulation_steps=words.accumulate,
            lora=words.lora,
            qlora=words.qlora,
            dora=words.dora,
            degrees={axis: written for axis, written in degrees.items() if written is not None},
            zero=words.zero,
            precision=words.precision,
            optimizer=words.optimizer,
            recompute=words.recompute,
            offload=words.offload,
        )

    """Parameters, gradients and optimizer state on the host."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What words come to."""

    settings: list[Setting]
    supposed: list[str]
    """What nobody said, and what was taken for it."""


def of_spec(words: Shorthand, document: Node) -> Meaning:
    """What the words put into a spec. Raises SpecError at the option."""
    found = Meaning([], [])
    _tell_gpus(words, found)
    _tell_sizes(words, found)
    _tell_training(words, found)
    if (adapter := _adapter(words)) is not None:
        found.settings.append(adapter)
    _tell_degrees(words, document, found)
    if words.offload and words.zero is None and not _is_sharded(found.settings, document):
        raise SpecError(
            "nothing is sharded, and it is FSDP2 and DeepSpeed that keep parameters on the host",
            allowed="--offload beside --fsdp or --zero",
            remedy="add --fsdp; for activations write --set train.activation_offload=true",
            place="--offload",
        )
    if words.precision:
        found.settings.append(_precision(words, words.precision, sharded=_is_sharded(found.settings, document)))
    return found


def of_model(words: Shorthand, document: Node, config: Mapping[str, Any], others: Iterable[str]) -> Meaning:
    """What the words come to for a model that no spec describes: all that a spec would have to say; `others` are the
    keys that something else says."""
    found = of_spec(words, document)
    said = {each.path for each in found.settings} | set(others)
    if document.nearest_to("model.adapter").path == "model.adapter":
        said.add("model.adapter")
    world = _world(found.settings, document)
    if world > 1 and not any(path.startswith("parallel.") for path in said):
        found.settings.append(setting("parallel.dp_replicate.degree", world, "--gpus"))
        found.supposed.append(f"DDP over {world} GPUs, each with the whole model (--fsdp shards it)")
    _suppose_tokens(config, said, found)
    _suppose_precision(words, document, said, found)
    return found


def _tell_gpus(words: Shorthand, found: Meaning) -> None:
    if words.gpus:
        count = named_gpus.parse(words.gpus)
        found.settings.append(setting("cluster.nodes", count.nodes, "--gpus"))
        found.settings.append(setting("cluster.gpus_per_node", count.gpus_per_node, "--gpus"))
        if count.supposed:
            found.supposed.append(count.supposed)
        if count.name:
            found.settings.append(setting("cluster.gpu", count.name, "--gpus"))
            if words.gpu:
                raise SpecError(
                    f"--gpus names {count.name}, and --gpu {words.gpu}",
                    allowed="one of the two",
                    remedy="delete one",
                    place="--gpu",
                )
    if words.gpu:
        found.settings.append(setting("cluster.gpu", words.gpu, "--gpu"))
        _arch(found.settings)


def _tell_sizes(words: Shorthand, found: Meaning) -> None:
    if words.sequence_length:
        text = words.sequence_length
        value = int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else text
        found.settings.append(setting("train.sequence_length", value, "--seq"))
    if words.micro_batch_size is not None:
        found.settings.append(setting("train.micro_batch_size", words.micro_batch_size, "--batch"))
    if words.gradient_accumulation_steps is not None:
        steps = words.gradient_accumulation_steps
        found.settings.append(setting("train.gradient_accumulation_steps", steps, "--accumulate"))


def _tell_training(words: Shorthand, found: Meaning) -> None:
    if words.optimizer:
        optimizer = OPTIMIZERS.get(words.optimizer.lower(), {"name": words.optimizer})
        found.settings.append(setting("train.optimizer", optimizer, "--optimizer"))
    if words.recompute:
        every = words.recompute.isdecimal() and len(words.recompute) < 7
        mode = {"every": int(words.recompute)} if every else words.recompute
        found.settings.append(setting("train.recompute", mode, "--recompute"))
    if words.offload:
        found.settings.append(setting("parallel.dp_shard.offload", "cpu", "--offload"))


def _adapter(words: Shorthand) -> Setting | None:
    given = {kind: text for kind in ("lora", "qlora", "dora") if (text := getattr(words, kind)) is not None}
    if len(given) > 1:
        names = " and ".join(f"--{kind}" for kind in given)
        raise SpecError(f"{names} are both given", allowed="one kind of adapter", remedy="delete the others")
    return next(
        (setting("model.adapter", adapter_of(kind, text, f"--{kind}"), f"--{kind}") for kind, text in given.items()),
        None,
    )


def _tell_degrees(words: Shorthand, document: Node, found: Meaning) -> None:
    """Degrees that are numbers first; then the one that takes the rest of the GPUs."""
    degrees = dict(words.degrees)
    if words.zero is not None:
        if "dp_shard" in degrees:
            raise SpecError(
                "--zero and --fsdp are both given",
                allowed="one of the two: DeepSpeed's engine, or PyTorch's fully_shard",
                remedy="delete the other",
            )
        _tell_zero(words, found)
        degrees.setdefault("dp_replicate", REST)
    for axis, written in degrees.items():
        if written != REST:
            found.settings.append(setting(f"parallel.{axis}.degree", _degree(axis, written), _option(axis)))
    resting = [axis for axis, written in degrees.items() if written == REST]
    if len(resting) > 1:
        names = " and ".join(_option(axis) for axis in resting)
        raise SpecError(
            f"{names} both take the rest of the GPUs", allowed="one without a number", remedy=f"{names} N each"
        )
    for axis in resting:
        world, others = _world(found.settings, document), _taken(found.settings, document, axis)
        if world % others:
            raise SpecError(
                f"{world} GPUs are not divided by the {others} ranks of the other axes",
                allowed="degrees whose product is the number of GPUs",
                remedy="change --gpus or the degrees",
                place=_option(axis),
            )
        found.settings.append(setting(f"parallel.{axis}.degree", world // others, _option(axis)))
    if words.gpus and degrees and not resting:
        _check_product(list(degrees), document, found)


def _check_product(axes: list[str], document: Node, found: Meaning) -> None:
    world, ranks = _world(found.settings, document), _taken(found.settings, document, "")
    if world != ranks:
        raise SpecError(
            f"there are {world} GPUs, and {ranks} ranks",
            allowed="degrees whose product is the number of GPUs",
            remedy="leave the number behind --fsdp out, and it takes the rest"
            if "dp_shard" in axes
            else "change --gpus or the degrees, or add --fsdp, which takes the rest",
            place=" ".join(map(_option, axes)),
        )


def _tell_zero(words: Shorthand, found: Meaning) -> None:
    bf16 = words.precision in ("", "bf16")
    mixed = {"bf16": {"enabled": True}} if bf16 else {"fp16": {"enabled": True}} if words.precision == "fp16" else {}
    stage: dict[str, Any] = {"stage": words.zero}
    if words.offload:
        stage["offload_optimizer"] = {"device": "cpu"}
        found.settings[:] = [each for each in found.settings if each.path != "parallel.dp_shard.offload"]
    config = {**mixed, "zero_optimization": stage, "zero_allow_untested_optimizer": True}
    found.settings.append(setting("parallel.deepspeed", config, "--zero"))


def _degree(axis: str, written: str) -> int:
    if written.isdecimal() and 0 < len(written) < 8 and int(written):
        return int(written)
    raise SpecError(
        f"the degree is {written[:80]!a}",
        allowed="a whole number from 1"
        + ("" if axis not in ("dp_shard", "dp_replicate") else ", or nothing behind it"),
        remedy=f"write {_option(axis)} 4; the job or the model stands before the options",
        place=_option(axis),
    )


def _option(axis: str) -> str:
    return {"dp_shard": "--fsdp", "dp_replicate": "--ddp"}.get(axis, f"--{axis}")


def _number(settings: list[Setting], document: Node, path: str) -> int:
    """A count, 1 where it is not said or no count: the reader of specs says what is wrong with it."""
    node = next((each.node for each in reversed(settings) if each.path == path), None)
    if node is None:
        written = document.nearest_to(path)
        node = written if written.path in (path, path.removesuffix(".degree")) else None
    value = 1 if node is None else node.value
    return value if type(value) is int and value > 0 else 1


def _world(settings: list[Setting], document: Node) -> int:
    return _number(settings, document, "cluster.nodes") * _number(settings, document, "cluster.gpus_per_node")


def _taken(settings: list[Setting], document: Node, but: str) -> int:
    """The ranks of all other axes."""
    product = 1
    for axis in AXES:
        if axis != but:
            product *= _number(settings, document, f"parallel.{axis}.degree")
    return product


def _is_sharded(settings: list[Setting], document: Node) -> bool:
    return any(_number(settings, document, f"parallel.{axis}.degree") > 1 for axis in ("dp_shard", "cp", "ep"))


def _precision(words: Shorthand, asked: str, *, sharded: bool) -> Setting:
    """bf16 and fp16 are mixed: by the policy of fully_shard where it shards, by DeepSpeed's engine, or by autocast."""
    known = CHECKS[Train, "precision"]
    if asked not in PRECISIONS and not known.accepts(asked):
        raise SpecError(
            f"there is no precision {asked[:80]!a}",
            allowed=f"{', '.join(PRECISIONS)}; or as a spec writes it: {known.allowed}",
            remedy=foreign_words.value_remedy(Train, "precision", asked)
            or did_you_mean(asked, PRECISIONS)
            or "write one of these",
            place="--precision",
        )
    if words.zero is not None or asked == "fp32":
        value = "none"
    elif asked == "bf16" and sharded:
        value = "fsdp_mixed"
    else:
        value = f"{asked}_autocast" if asked in PRECISIONS else asked
    return setting("train.precision", value, "--precision" if words.precision else "the usual precision")


def _suppose_tokens(config: Mapping[str, Any], said: set[str], found: Meaning) -> None:
    config = config.get("text_config", config)  # of a model that takes pictures too
    if "train.sequence_length" in said or "vocab_size" not in config:
        return
    most = config.get("max_position_embeddings") or config.get("n_positions")
    tokens = min(most, _USUAL_TOKENS) if type(most) is int and most > 0 else _USUAL_TOKENS
    if config.get("model_type") == "roberta":
        tokens = min(tokens, int(most or tokens) - 2)  # its positions begin behind the padding's index
    found.settings.append(setting("train.sequence_length", tokens, "the usual length"))
    found.supposed.append(f"sequences of {tokens} tokens (--seq)")


def _suppose_precision(words: Shorthand, document: Node, said: set[str], found: Meaning) -> None:
    """As most people train: an adapter beside a model in bfloat16, everything else mixed with parameters in float32."""
    asked = words.precision or _usual_precision(found.settings)
    if not words.precision and "train.precision" not in said:
        chosen = _precision(words, asked, sharded=_is_sharded(found.settings, document))
        found.settings.append(chosen)
        found.supposed.append(f"train.precision {chosen.node.value} (--precision bf16, fp16 or fp32)")
    half = "float16" if asked == "fp16" else "bfloat16"
    if "model.parameter_dtype" not in said and asked != "fp32" and ("model.adapter" in said or words.zero is not None):
        found.settings.append(setting("model.parameter_dtype", half, "the usual precision"))
        found.supposed.append(f"the model in {half} (--set model.parameter_dtype=float32)")


def _usual_precision(settings: list[Setting]) -> str:
    return "fp16" if _arch(settings) in _WITHOUT_BF16 else "bf16"


def _arch(settings: list[Setting]) -> str:
    """Of the GPU that a word says; empty where none does. Raises SpecError for a GPU that nobody knows."""
    node = next((each.node for each in settings if each.path == "cluster.gpu"), None)
    if node is None:
        return ""
    return str(short_forms.written_out(Gpu, node).nearest_to("arch").value)


def read_host_memory(written: str | int, place: str) -> int:
    """Bytes; 0 for nothing said. Raises SpecError for what is no such size."""
    try:
        found = parse_bytes(written) if written != "" else 0
    except ValueError:
        found = -1
    if not 0 <= found <= MOST_HOST_BYTES:
        raise SpecError(f"{str(written)[:40]!a}", allowed="a size from 0 to 1024TiB, such as 480GiB", place=place)
    return found
