"""A job in a few words: what options, `--set key=value` and `r=16,alpha=32` mean as values of a spec."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import foreign_words, hf_config, named_gpus, short_forms, spec_keys, trainer
from planner.job.layout import AXES
from planner.job.nodes import Node, below, did_you_mean, node_from_data, placed
from planner.job.schema import CHECKS, Gpu, Train
from planner.job.size_limits import MOST_DEPTH, MOST_HOST_BYTES
from planner.job.yaml_text import read_yaml
from planner.units import parse_bytes

_INLINED = {"model.hf_config": hf_config.read, **dict.fromkeys(trainer.FILES, trainer.read_file)}
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
            f"{written[:200]!a} is not key=value",
            allowed="a dotted key of the spec and its value, such as train.micro_batch_size=4",
            remedy="write --set KEY=VALUE, in quotes where the value has spaces",
            place="--set",
        )
    if not text.strip():
        raise SpecError("there is no value", allowed='a value as in YAML; "" for an empty text', place=place)
    try:
        return Setting(path, placed(read_yaml(text, place), path, place))
    except SpecError as error:
        raise SpecError(error.problem, allowed=error.allowed, remedy=error.remedy, place=place) from None


def in_options(error: SpecError) -> SpecError:
    """A fault of an option, with the options in the place of the keys that they say."""
    if not error.place.startswith("--") or error.place.startswith("--set"):
        return error
    allowed, remedy = (_KEY.sub(lambda key: _OPTION_OF[key[0]], text) for text in (error.allowed, error.remedy))
    return type(error)(error.problem, allowed=allowed, remedy=remedy, place=error.place)


def setting(path: str, value: object, place: str) -> Setting:
    """A value that an option stands for."""
    return Setting(path, node_from_data(value, place, path))


def with_settings(document: Node, settings: Sequence[Setting], folder: Path | None) -> Node:
    """The document with these values in the place of its own, one after the other; what it refers to starts at
    `folder`. Raises SpecError for a key below a value that has none."""
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    for given in settings:
        if (dots := given.path.count(".")) > MOST_DEPTH:
            raise SpecError(
                f"{given.path[:80]!a}... has {dots + 1} parts",
                allowed=f"a key of the spec, at most {MOST_DEPTH} deep",
                place=given.node.place,
            )
        path = "cluster.gpu" if given.path == "cluster.gpu.name" else given.path  # its figures change with the name
        document = _with(document, path.split("."), given.node, folder)
    return document


def _with(node: Node, keys: list[str], value: Node, folder: Path | None) -> Node:
    if not keys:
        return value
    children = _children(node, folder)
    if children is None:
        raise SpecError(
            f"{node.path} is a value, and has no keys below it",
            allowed=f"--set {node.path}=VALUE",
            remedy="set the whole value",
            place=value.place,
        )
    # A mapping that an option made stands nowhere: what is missing in it is not that option's fault.
    child = children.get(keys[0], Node({}, below(node.path, keys[0]), node.place, value.place))
    return replace(node, value={**children, keys[0]: _with(child, keys[1:], value, folder)})


def _children(node: Node, folder: Path | None) -> dict[str, Node] | None:
    """What stands below a value, its short form written out; None for one that has no keys."""
    key = spec_keys.by_path().get(node.path)
    if key is not None and key.section is None and not spec_keys.takes_a_mapping(key):
        return None
    if node.value is None:
        return {}
    if isinstance(node.value, str) and node.path in _INLINED:
        return node_from_data(_INLINED[node.path](node, folder), node.place, node.path).mapping()
    if key is not None and (short := key.short) and not isinstance(node.value, dict | list):
        return {short: replace(node, path=below(node.path, short))}
    if key is not None and key.section is not None and not isinstance(node.value, dict):
        node = short_forms.written_out(key.section, node)
    return node.value if isinstance(node.value, dict) else None


_COUNTS = {"r": "r", "rank": "r", "alpha": "lora_alpha", "lora_alpha": "lora_alpha"}
_TARGETS = ("target", "targets", "target_modules")


def read_lora(kind: str, text: str, place: str) -> dict[str, Any]:
    """`model.adapter` as a spec writes it. Raises SpecError for a word that is not understood."""
    adapter: dict[str, Any] = {"kind": kind}
    for part in text.replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if not part:
            continue
        if not equals and part.isdecimal():
            key, value = "r", part
        if key in _COUNTS and value.isdecimal() and len(value) < 10:
            adapter[_COUNTS[key]] = int(value)
        elif key in ("dropout", "lora_dropout") and value.replace(".", "", 1).isdecimal() and len(value) < 20:
            adapter["lora_dropout"] = float(value)
        elif key in _TARGETS and value:
            adapter["target_modules"] = list(filter(None, value.split("+")))
        else:
            raise SpecError(
                f"{part[:80]!a} is nothing of an adapter",
                allowed="r=16, alpha=32, dropout=0.05, target=q_proj+v_proj, with commas between them",
                remedy=f"write {place} r=16; the job or the model stands before the options",
                place=place,
            )
    return adapter


REST = "rest"
"""A degree: the GPUs that no other axis takes."""
PRECISIONS = ("bf16", "fp16", "fp32")
_USUAL_TOKENS = 2048
WITHOUT_BF16 = ("sm_60", "sm_61", "sm_70", "sm_75")
"""No bfloat16 in tensor cores before Ampere; Pascal has none of those (CUDA C++ programming guide, compute
capabilities)."""
_OPTIONS = {"dp_shard": "--fsdp", "dp_replicate": "--ddp", **{axis: f"--{axis}" for axis in ("tp", "pp", "cp", "ep")}}
"""What says the degree of an axis."""
_OPTION_OF = {
    "train.sequence_length": "--seq", "train.micro_batch_size": "--batch", "train.optimizer": "--optimizer",
    "train.gradient_accumulation_steps": "--accumulate", "train.recompute": "--recompute",
    "train.precision": "--precision", "parallel.dp_shard.offload": "--offload", "cluster.gpu": "--gpu",
    **{f"parallel.{axis}.degree": option for axis, option in _OPTIONS.items()},
}  # fmt: skip
"""What says a key of the spec."""
_KEY = re.compile("|".join(rf"\b{re.escape(key)}\b(?![.])" for key in _OPTION_OF))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorthand:
    """The words, by the names of their options; each may be absent."""

    gpus: str = ""
    """`4xH100`, as planner.job.named_gpus reads it."""
    gpu: str = ""
    seq: str = ""
    """A number of tokens, or such as `4k`."""
    batch: int | None = None
    """Samples of a micro-batch."""
    accumulate: int | None = None
    """Micro-batches of an optimizer step."""
    lora: str | None = None
    """`r=16,alpha=32,target=q_proj+v_proj`, or empty; also of the next two."""
    qlora: str | None = None
    dora: str | None = None
    fsdp: str | None = None
    """Over how many ranks FSDP2 shards, or REST; also of the next."""
    ddp: str | None = None
    tp: str | None = None
    pp: str | None = None
    cp: str | None = None
    ep: str | None = None
    zero: int | None = None
    """The stage of DeepSpeed's ZeRO, under transformers' Trainer."""
    precision: str = ""
    """bf16, fp16 or fp32, mixed as the kind of parallelism mixes it; or as a spec writes it."""
    optimizer: str = ""
    recompute: str = ""
    offload: bool = False
    """Parameters, gradients and optimizer state on the host."""

    @classmethod
    def of_words(cls, words: Any) -> Shorthand:
        """Of an object whose attributes have the words as people write them: options, or the body of a request."""
        return cls(**{word.name: getattr(words, word.name) for word in fields(cls)})

    @property
    def degrees(self) -> dict[str, str]:
        """A number, or REST, by axis."""
        written = {axis: getattr(self, option.removeprefix("--")) for axis, option in _OPTIONS.items()}
        return {axis: degree for axis, degree in written.items() if degree is not None}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What words come to, over the spec that is there."""

    document: Node
    settings: list[Setting] = field(default_factory=list)
    supposed: list[str] = field(default_factory=list)
    """What is not given, and what is assumed."""

    is_by_trainer: bool = False
    """The job is run by transformers' Trainer, in whose words it is written."""

    def put(self, path: str, value: object, place: str = "") -> None:
        """A value that an option stands for: the key's own, or `place`."""
        place = place or _OPTION_OF[path]
        if self.is_by_trainer:
            path, value = trainer.in_its_words(path, value)
        self.settings.append(setting(path, value, place))

    def count(self, path: str) -> int:
        """A count, 1 where it is not said or no count: the reader of specs says what is wrong with it."""
        node = next((given.node for given in reversed(self.settings) if given.path == path), None)
        if node is None:
            node = self.document.nearest_to(path)
            if node.path not in (path, path.removesuffix(".degree")):
                return 1
        return node.value if type(node.value) is int and node.value > 0 else 1

    @property
    def world(self) -> int:
        """How many GPUs there are."""
        return self.count("cluster.nodes") * self.count("cluster.gpus_per_node")

    def ranks(self, *, but: str = "") -> int:
        """The ranks of all axes but one."""
        return math.prod(self.count(f"parallel.{axis}.degree") for axis in AXES if axis != but)

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded."""
        return any(self.count(f"parallel.{axis}.degree") > 1 for axis in ("dp_shard", "cp", "ep"))

    @property
    def arch(self) -> str:
        """Of the GPU that a word says; empty where none does. Raises SpecError for a GPU that nobody knows."""
        node = next((given.node for given in self.settings if given.path == "cluster.gpu"), None)
        return "" if node is None else str(short_forms.written_out(Gpu, node).nearest_to("arch").value)


def of_spec(words: Shorthand, document: Node, others: Iterable[str]) -> Meaning:
    """What the words put into a spec; `others` are keys that something else says. Raises SpecError at the option."""
    says_trainer = any(path.startswith("trainer") for path in (document.nearest_to("trainer").path, *others))
    is_by_trainer = words.zero is not None or says_trainer
    meaning = Meaning(document, is_by_trainer=is_by_trainer)
    _put_gpus(words, meaning)
    if words.seq:
        is_number = words.seq.removeprefix("-").isdecimal() and len(words.seq) < 20
        meaning.put("train.sequence_length", int(words.seq) if is_number else words.seq)
    if words.batch is not None:
        meaning.put("train.micro_batch_size", words.batch)
    if words.accumulate is not None:
        meaning.put("train.gradient_accumulation_steps", words.accumulate)
    if words.optimizer:
        if is_by_trainer:
            meaning.put(f"{trainer.ARGUMENTS}.optim", words.optimizer, "--optimizer")
        else:
            optimizer = foreign_words.find_optimizer(words.optimizer) or {"name": words.optimizer}
            meaning.put("train.optimizer", optimizer)
    if words.recompute:
        is_every = words.recompute.isdecimal() and len(words.recompute) < 7
        meaning.put("train.recompute", {"every": int(words.recompute)} if is_every else words.recompute)
    if words.offload and words.zero is None:
        meaning.put("parallel.dp_shard.offload", "cpu")
    adapters = {kind: text for kind in ("lora", "qlora", "dora") if (text := getattr(words, kind)) is not None}
    if len(adapters) > 1:
        names = " and ".join(f"--{kind}" for kind in adapters)
        raise SpecError(f"{names} are both given", allowed="one kind of adapter", remedy="delete the others")
    for kind, text in adapters.items():
        meaning.put("model.adapter", read_lora(kind, text, f"--{kind}"), f"--{kind}")
    if words.zero is not None:
        _put_zero(words, words.zero, meaning)
    _put_degrees(words.degrees, words, meaning)
    if words.offload and words.zero is None and not meaning.shards:
        raise SpecError(
            "nothing is sharded, and it is FSDP2 and DeepSpeed that keep parameters on the host",
            allowed="--offload beside --fsdp or --zero",
            remedy="add --fsdp; for activations write --set train.activation_offload=true",
            place="--offload",
        )
    if words.precision:
        _put_precision(words.precision, "--precision", meaning)
    return meaning


def of_model(words: Shorthand, document: Node, config: Mapping[str, Any], others: Sequence[str]) -> Meaning:
    """What the words come to for a model that no spec describes: all that a spec would have to say; `others` are the
    keys that something else says."""
    meaning = of_spec(words, document, others)
    given = {setting.path for setting in meaning.settings} | set(others)
    if document.nearest_to("model.adapter").path == "model.adapter":
        given.add("model.adapter")
    is_laid_out = meaning.is_by_trainer or any(path.startswith("parallel.") for path in given)
    if (world := meaning.world) > 1 and not is_laid_out:
        meaning.put("parallel.dp_replicate.degree", world, "--gpus")
        meaning.supposed.append(f"DDP over {world} GPUs, each with the whole model (--fsdp shards it)")
    config = config.get("text_config", config)  # of a model that takes pictures too
    if "train.sequence_length" not in given and "vocab_size" in config:
        most = config.get("max_position_embeddings") or config.get("n_positions")
        tokens = min(most, _USUAL_TOKENS) if type(most) is int and most > 0 else _USUAL_TOKENS
        if config.get("model_type") == "roberta":
            tokens = min(tokens, int(most or tokens) - 2)  # its positions begin behind the padding's index
        meaning.put("train.sequence_length", tokens, "the usual length")
        meaning.supposed.append(f"sequences of {tokens} tokens (--seq)")
    # As most people train: an adapter beside a model in bfloat16, everything else mixed with parameters in float32.
    asked = words.precision or ("fp16" if meaning.arch in WITHOUT_BF16 else "bf16")
    is_usual = not words.precision and "train.precision" not in given
    if is_usual and (words.zero is not None or not meaning.is_by_trainer):
        key, value = _put_precision(asked, "the usual precision", meaning)
        meaning.supposed.append(f"{key} {value} (--precision bf16, fp16 or fp32)")
    if meaning.is_by_trainer and "model.parameter_dtype" not in given:
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
        meaning.put("model.parameter_dtype", dtype, "the model's config")
        meaning.supposed.append(f"the model in {dtype}, as from_pretrained of transformers 5 loads this config")
    elif "model.parameter_dtype" not in given and "model.adapter" in given and asked != "fp32":
        half = "float16" if asked == "fp16" else "bfloat16"
        meaning.put("model.parameter_dtype", half, "the usual precision")
        meaning.supposed.append(f"the model in {half} (--set model.parameter_dtype=float32)")
    return meaning


def _put_gpus(words: Shorthand, meaning: Meaning) -> None:
    if words.gpus:
        count = named_gpus.parse(words.gpus)
        meaning.put("cluster.nodes", count.nodes, "--gpus")
        meaning.put("cluster.gpus_per_node", count.gpus_per_node, "--gpus")
        if count.supposed:
            meaning.supposed.append(count.supposed)
        if count.name:
            meaning.put("cluster.gpu", count.name, "--gpus")
            if words.gpu:
                raise SpecError(
                    f"--gpus names {count.name}, and --gpu {words.gpu}",
                    allowed="one of the two",
                    remedy="delete one",
                    place="--gpu",
                )
    if words.gpu:
        meaning.put("cluster.gpu", words.gpu, "--gpu")
        _ = meaning.arch  # a GPU that nobody knows is refused at the option


def _put_zero(words: Shorthand, stage: int, meaning: Meaning) -> None:
    """DeepSpeed's own configuration of this stage, in the arguments of transformers' Trainer."""
    if stage not in (1, 2, 3):
        raise SpecError(f"there is no stage {stage}", allowed="1, 2 or 3", place="--zero")
    if beside := " and ".join(_OPTIONS[axis] for axis in words.degrees):
        raise SpecError(
            f"{beside} stands beside it",
            allowed="one of them: DeepSpeed divides over all GPUs, and PyTorch's axes are not its own",
            remedy=f"delete --zero, or {beside}",
            place="--zero",
        )
    config = trainer.write_deepspeed_config(stage, offload=words.offload, own_optimizer=bool(words.optimizer))
    meaning.put(trainer.DEEPSPEED, config, "--zero")


def _put_degrees(degrees: Mapping[str, str], words: Shorthand, meaning: Meaning) -> None:
    """Degrees that are numbers first; then the one that takes the rest of the GPUs."""
    for axis, written in degrees.items():
        if written == REST:
            continue
        if not (written.isdecimal() and 0 < len(written) < 8 and int(written)):
            or_nothing = ", or nothing behind it" if axis in ("dp_shard", "dp_replicate") else ""
            raise SpecError(
                f"the degree is {written[:80]!a}",
                allowed=f"a whole number from 1{or_nothing}",
                remedy=f"write {_OPTIONS[axis]} 4; the job or the model stands before the options",
                place=_OPTIONS[axis],
            )
        meaning.put(f"parallel.{axis}.degree", int(written))
    resting = [axis for axis, written in degrees.items() if written == REST]
    if len(resting) > 1:
        names = " and ".join(_OPTIONS[axis] for axis in resting)
        raise SpecError(
            f"{names} both take the rest of the GPUs", allowed="one without a number", remedy=f"{names} N each"
        )
    for axis in resting:
        world, others = meaning.world, meaning.ranks(but=axis)
        if world % others:
            raise SpecError(
                f"{world} GPUs are not divided by the {others} ranks of the other axes",
                allowed="degrees whose product is the number of GPUs",
                remedy="change --gpus or the degrees",
                place=_OPTIONS[axis],
            )
        meaning.put(f"parallel.{axis}.degree", world // others)
    if words.gpus and degrees and not resting and meaning.world != meaning.ranks():
        raise SpecError(
            f"there are {meaning.world} GPUs, and {meaning.ranks()} ranks",
            allowed="degrees whose product is the number of GPUs",
            remedy="leave the number behind --fsdp out, and it takes the rest"
            if "dp_shard" in degrees
            else "change --gpus or the degrees, or add --fsdp, which takes the rest",
            place=" ".join(_OPTIONS[axis] for axis in degrees),
        )


def _put_precision(asked: str, place: str, meaning: Meaning) -> tuple[str, Any]:
    """The key and its value: bf16 and fp16 are mixed by the policy of fully_shard where it shards, by transformers'
    Trainer, or by autocast."""
    check = CHECKS[Train, "precision"]
    if asked not in PRECISIONS and not check.accepts(asked):
        raise SpecError(
            f"there is no precision {asked[:80]!a}",
            allowed=f"{', '.join(PRECISIONS)}; or as a spec writes it: {check.allowed}",
            remedy=foreign_words.value_remedy(Train, "precision", asked)
            or did_you_mean(asked, PRECISIONS)
            or "write one of these",
            place="--precision",
        )
    key: str = "train.precision"
    value: str | bool = asked
    if meaning.is_by_trainer and asked in PRECISIONS:
        key, value = f"{trainer.ARGUMENTS}.{'fp16' if asked == 'fp16' else 'bf16'}", asked != "fp32"
    elif asked == "fp32":
        value = "none"
    elif asked == "bf16" and meaning.shards:
        value = "fsdp_mixed"
    elif asked in PRECISIONS:
        value = f"{asked}_autocast"
    meaning.put(key, value, place)
    return key, value


def read_host_memory(written: str | int, place: str) -> int:
    """Bytes; 0 for nothing said. Raises SpecError for what is no such size."""
    try:
        size = parse_bytes(written) if written != "" else 0
    except ValueError:
        size = -1
    if not 0 <= size <= MOST_HOST_BYTES:
        raise SpecError(f"{str(written)[:40]!a}", allowed="a size from 0 to 1024TiB, such as 480GiB", place=place)
    return size
