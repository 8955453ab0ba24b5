"""Imports one job from all that a person names: specs, models, files of other tools, launch lines."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import hf_config, shorthand
from planner.job.importers import (
    accelerate,
    axolotl,
    deepspeed,
    fsdp,
    fsdp_versions,
    launch_lines,
    llama_factory,
    peft,
    torchtitan,
    training_arguments,
)
from planner.job.importers.drafts import Draft, contradiction, read_yaml_file, unite_drafts
from planner.job.importers.recipes import Recipe, fill_draft, tell_accumulation, tell_adapter, tell_model
from planner.job.json_text import file_text, read_json
from planner.job.loading import choices_of, document_of, load_node
from planner.job.nodes import Node, did_you_mean, node_from_data
from planner.job.schema import Job
from planner.job.shorthand import Setting, Shorthand, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSources:
    """What a person gives on the command line; each may be absent."""

    training_arguments: Path | None = None
    accelerate: Path | None = None
    deepspeed: Path | None = None
    torchrun: str = ""
    peft: Path | None = None
    torchtitan: Path | None = None
    axolotl: Path | None = None
    llama_factory: Path | None = None
    job: Path | None = None
    """A spec that need not be complete: JOB.yaml."""
    model: Path | str | None = None
    """The path of a config.json, or a model's name."""
    gpu: str = ""
    sequence_length: int | str | None = None
    words: Shorthand = field(default_factory=Shorthand)
    """What options say, whatever the files do; the GPU and the sequence's length stand above."""
    settings: Sequence[Setting] = ()
    """As `words`, of single keys."""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """The job, and what people are told of how it came about."""

    job: Job
    ignored: Mapping[str, tuple[str, ...]]
    """By source: the keys that do not matter to memory, each once."""
    not_read: tuple[str, ...] = ()
    """Words of the launch line that are not fields of TrainingArguments."""
    supposed: tuple[str, ...] = ()
    """What nobody said, and what was taken for it."""
    chosen: tuple[str, ...] = ()
    """What was said and leaves something open, and what it was taken for."""


_DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass(kw_only=True)
class _ParsedSources:
    """All of it, read and checked."""

    given: ImportSources
    folder: Path
    arguments: training_arguments.TrainingArguments | None = None
    config: accelerate.Config | None = None
    launch: launch_lines.Launch | None = None
    deepspeed: Node | None = None
    fsdp: Mapping[str, Node] | None = None
    precision: Node | None = None
    recipes: list[Recipe] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=dict)

    @property
    def under(self) -> str:
        if self.deepspeed is not None:
            return "deepspeed"
        return "fsdp" if self.fsdp is not None or any(each.shards for each in self.recipes) else "ddp"


def import_job(given: ImportSources, folder: Path) -> ImportedJob:
    """The job that the files and the line say together; paths in the line start at `folder`.

    Raises SpecError for what is not understood, for contradictions, and, at once, for all that nobody says.
    """
    sources = _read(given, folder)
    draft = Draft()
    config = _tell_model_and_gpu(draft, given, sources.recipes)
    otherwise = _tell_sources(draft, sources)
    for recipe in sources.recipes:
        tell_adapter(draft, recipe, config)
    words = shorthand.of_spec(given.words, draft.document("the spec made of all that was given"))
    draft.override([*words.settings, *given.settings])
    of_recipes = [each for recipe in sources.recipes for each in recipe.supposed]
    supposed = [
        *otherwise,
        *words.supposed,
        *of_recipes,
        *_suppose_dtype(draft, config),
        *_left_to_the_spec(draft, sources),
    ]
    missing = _missing(draft, sources, config)
    if missing:
        raise _incomplete(missing, sources)
    world = _tell_ranks(draft, sources)
    if sources.arguments is not None:
        names = training_arguments.without_effect(sources.arguments, sources.under, world)
        sources.ignored.setdefault(_source_of_arguments(sources), []).extend(names)
    start = given.job.parent if given.job else None
    document = draft.document("the spec made of all that was given", start)
    job = load_node(document, start)
    return ImportedJob(
        job=job,
        ignored={source: tuple(dict.fromkeys(names)) for source, names in sources.ignored.items() if names},
        not_read=tuple(dict.fromkeys(sources.launch.not_read)) if sources.launch else (),
        supposed=tuple(supposed),
        chosen=tuple(choices_of(document)),
    )


def _source_of_arguments(sources: _ParsedSources) -> str:
    recipe = next((each.source for each in sources.recipes if each.arguments is not None), "")
    return recipe or _name(sources.given.training_arguments)


def _name(path: Path | None) -> str:
    return str(path) if path is not None else "the launch line"


def _read(given: ImportSources, folder: Path) -> _ParsedSources:
    found = _ParsedSources(given=given, folder=folder)
    if given.torchrun:
        found.launch = launch_lines.read(given.torchrun, folder)
        found.arguments, found.config = found.launch.arguments, found.launch.accelerate
        found.ignored["the launch line"] = [] if found.arguments is None else found.arguments.ignored_keys
    if given.training_arguments is not None:
        read = training_arguments.read(given.training_arguments)
        found.ignored[_name(given.training_arguments)] = read.ignored_keys
        found.arguments = training_arguments.join_arguments(read, found.arguments)
    if given.accelerate is not None:
        config = accelerate.read(given.accelerate)
        found.ignored[_name(given.accelerate)] = config.ignored_keys
        found.config = config if found.config is None else accelerate.join_configs(config, found.config)
    for reader, path in _recipes_of(given):
        recipe = reader(path)
        found.recipes.append(recipe)
        found.ignored[recipe.source] = list(recipe.ignored)
        if recipe.arguments is not None:
            first = found.arguments
            found.arguments = (
                recipe.arguments if first is None else training_arguments.join_arguments(recipe.arguments, first)
            )
    _read_distribution(found)
    return found


def _recipes_of(given: ImportSources) -> list[tuple[Callable[[Path], Recipe], Path]]:
    """The files of whole jobs, with what reads each."""
    readers = (
        (peft.recipe, given.peft), (torchtitan.read, given.torchtitan), (axolotl.read, given.axolotl),
        (llama_factory.read, given.llama_factory),
    )  # fmt: skip
    return [(reader, path) for reader, path in readers if path is not None]


def _read_distribution(found: _ParsedSources) -> None:
    given, arguments, config = found.given, found.arguments, found.config
    if given.deepspeed is not None:
        found.deepspeed = deepspeed.read(given.deepspeed)
        found.ignored[_name(given.deepspeed)] = deepspeed.list_ignored(found.deepspeed)
    settings = []
    if arguments is not None:
        found.deepspeed = deepspeed.same(found.deepspeed, deepspeed.of_training_arguments(arguments))
        settings.append(fsdp.of_training_arguments(arguments))
        found.precision = training_arguments.precision_of(arguments)
    if config is not None:
        found.deepspeed = deepspeed.same(found.deepspeed, deepspeed.of_accelerate(config))
        settings.append(accelerate.settings_of_fsdp(config, alone=not any(settings)))
        asked = accelerate.precision_of(config)
        if asked is not None and found.precision is not None and asked.value != found.precision.value:
            raise contradiction("the precision", found.precision, asked)
        found.precision = found.precision or asked
    asked_for = [each for each in settings if each is not None]
    if asked_for:
        found.fsdp = unite_drafts(asked_for[0], asked_for[-1])
    if found.fsdp is not None and found.deepspeed is not None:
        raise SpecError(
            "DeepSpeed and FSDP are both asked for",
            allowed="one of the two",
            remedy="delete fsdp and fsdp_config, or the DeepSpeed config",
            place=found.deepspeed.place,
        )


def _tell_model_and_gpu(draft: Draft, given: ImportSources, recipes: Sequence[Recipe]) -> Mapping[str, Any]:
    """Options and JOB.yaml; the content of the model's config.json, if there is one."""
    if given.job is not None:
        overlay = read_yaml_file(given.job, "holds a job spec, which need not be complete")
        draft.overlay(overlay)
        _inline_config(draft, overlay, given.job.parent)
    if given.model is not None:
        node = node_from_data(str(given.model), "--model", "model.hf_config")
        config = hf_config.read(node, Path())
        draft.say_value("model.hf_config", config, str(given.model))
    if given.gpu:
        written = draft.get("cluster.gpu")
        if written is None or written.plain() != given.gpu:
            draft.say_value("cluster.gpu", given.gpu, "--gpu")
    if given.sequence_length is not None:
        draft.say_value("train.sequence_length", given.sequence_length, "--sequence-length")
    for recipe in recipes:
        tell_model(draft, recipe)
    found = draft.get("model.hf_config")
    return {} if found is None else found.plain()


def _inline_config(draft: Draft, overlay: Node, folder: Path) -> None:
    node = overlay.nearest_to("model.hf_config")
    if node.path == "model.hf_config" and isinstance(node.value, str):
        draft.replace("model.hf_config", hf_config.read(node, folder), node.place)


def _tell_sources(draft: Draft, sources: _ParsedSources) -> list[str]:
    """Returns what is planned otherwise than it is."""
    otherwise: list[str] = []
    for recipe in sources.recipes:
        fill_draft(draft, recipe)
    if sources.launch is not None:
        launch_lines.fill_draft(draft, sources.launch)
    if sources.config is not None:
        accelerate.fill_draft(draft, sources.config)
    knows_precision = sources.arguments is not None or sources.config is not None
    if sources.arguments is not None:
        written = sources.deepspeed
        clips = written is None or written.mapping().get("gradient_clipping") is not None
        training_arguments.fill_draft(draft, sources.arguments, clips=clips)
        if draft.has("model.hf_config"):
            draft.suppose("train.loss", "model", "the Trainer, which hands the labels to the model")
    if sources.deepspeed is not None:
        deepspeed.fill_draft(
            draft, sources.deepspeed, sources.precision, is_known=knows_precision, by_transformers=knows_precision
        )
    elif sources.fsdp is not None:
        otherwise = fsdp.fill_draft(
            draft, sources.fsdp, mixed=sources.precision is not None, place=_place_of_sharding(sources)
        )
        _tell_sharded_precision(draft, sources)
    elif knows_precision and sources.precision is not None:
        draft.say_value("train.precision", f"{sources.precision.value}_autocast", sources.precision.place)
    return otherwise


def _place_of_sharding(sources: _ParsedSources) -> str:
    config = sources.config
    if (own := next((each for each in sources.recipes if each.shards), None)) is not None:
        return own.source
    if config is not None and config.kind() == "FSDP":
        return config.top["distributed_type"].place
    assert sources.arguments is not None
    return sources.arguments["fsdp"].place


def _tell_sharded_precision(draft: Draft, sources: _ParsedSources) -> None:
    """accelerate keeps trained parameters in float32 and gathers them in bfloat16; it runs no autocast beside."""
    node = sources.precision
    if node is None:
        return
    if node.value == "fp16":
        raise SpecError(
            "fp16 under FSDP is not planned",
            allowed="bf16, or none",
            remedy="train in bf16",
            place=node.place,
        )
    draft.say_value("train.precision", "fsdp_mixed", node.place)
    if not draft.has("model.adapter"):
        draft.say_value(
            "model.parameter_dtype", "float32", f"{node.place} (accelerate keeps trained parameters in float32)"
        )


def _suppose_dtype(draft: Draft, config: Mapping[str, Any]) -> list[str]:
    """As transformers 5 loads a model: in the dtype of its config."""
    if draft.has("model.parameter_dtype") or not config:
        return []
    said = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype = said if said in _DTYPES else "float32"
    draft.suppose("model.parameter_dtype", dtype, "the model's config")
    return [f"model.parameter_dtype is {dtype}, as from_pretrained of transformers 5 loads this config"]


def _left_to_the_spec(draft: Draft, sources: _ParsedSources) -> list[str]:
    """Without TrainingArguments the loop is the program's own, and a spec's defaults stand for what it does."""
    if sources.arguments is not None or draft.has("train.optimizer"):
        return []
    return ["train.optimizer, train.loss and the rest of train as every spec has them: nothing says what the loop does"]


def _missing(draft: Draft, sources: _ParsedSources, config: Mapping[str, Any]) -> list[str]:
    found = []
    if not draft.has("model.hf_config", "model.factory", "model.decoder"):
        found.append("model: its config (--model CONFIG.json, or JOB.yaml: model: {hf_config: config.json})")
    if not draft.has("cluster.gpu", "cluster.gpu.name"):
        found.append(f"cluster.gpu: the GPU (--gpu NAME, or JOB.yaml: cluster: {{gpu: {catalog.names()[0]}}})")
    if not draft.has("train.micro_batch_size"):
        found.append(
            "train.micro_batch_size: the samples of a micro-batch (--batch N, --from-training-arguments, or JOB.yaml:"
            " train: {micro_batch_size: 4})"
        )
    takes_tokens = not config or "vocab_size" in config
    if takes_tokens and not draft.has("train.sequence_length", "train.inputs") and not draft.has("model.factory"):
        found.append("train.sequence_length: the tokens of a sequence (--sequence-length N, or JOB.yaml)")
    if not draft.has("cluster.nodes", "cluster.gpus_per_node"):
        found.append(
            "cluster.gpus_per_node: how many processes there are (--gpus 8, --from-torchrun 'torchrun ...',"
            " --from-accelerate, or JOB.yaml: cluster: {nodes: 1, gpus_per_node: 8})"
        )
    if sources.fsdp is not None and (config or draft.has("model.factory")):
        found += fsdp.tell_parts(draft, sources.fsdp, config, _place_of_sharding(sources))
    return found


def _incomplete(missing: list[str], sources: _ParsedSources) -> SpecError:
    given = sources.given
    files = (given.training_arguments, given.accelerate, given.deepspeed, given.peft, given.torchtitan, given.axolotl)
    names = [str(path) for path in (*files, given.llama_factory) if path is not None]
    said_by = ", ".join([*names, *(["the launch line"] if given.torchrun else [])])
    lines = "".join(f"\n    {each}" for each in missing)
    return SpecError(
        f"{said_by} do not say everything that decides memory; what is missing:{lines}",
        allowed="what these files cannot say, by options or in a JOB.yaml",
        remedy=f"add {'it' if len(missing) == 1 else 'all of these'}",
    )


def _tell_ranks(draft: Draft, sources: _ParsedSources) -> int:
    """How many ranks each axis has; returns how many there are."""
    world = _number(draft, "cluster.nodes") * _number(draft, "cluster.gpus_per_node")
    sizes = {} if sources.config is None else sources.config.parallelism
    split = {name: node for name, node in sizes.items() if name.endswith("_size") and node.value != 1}
    if split:
        _tell_split(draft, sources, split)
    elif sources.fsdp is not None and fsdp_versions.is_hybrid(sources.fsdp):
        nodes = _number(draft, "cluster.nodes")
        draft.suppose("parallel.dp_replicate.degree", nodes, _place_of_sharding(sources))
        _suppose_rest(draft, "parallel.dp_shard.degree", world, _place_of_sharding(sources))
    elif sources.under == "fsdp":
        _suppose_rest(draft, "parallel.dp_shard.degree", world, _place_of_sharding(sources))
    else:
        _suppose_rest(draft, "parallel.dp_replicate.degree", world, "the number of processes")
    if sources.under == "ddp" and sources.arguments is not None and world > 1:
        training_arguments.tell_ddp(draft, sources.arguments)
    for recipe in sources.recipes:
        tell_accumulation(draft, recipe, _product(draft, "dp_replicate", "dp_shard", "ep"))
    if sources.fsdp is not None:
        syncs = sources.arguments is not None and training_arguments.syncs_each_batch(sources.arguments)
        draft.suppose("parallel.dp_shard.no_sync", not syncs, _place_of_sharding(sources))
    return world


def _tell_split(draft: Draft, sources: _ParsedSources, split: Mapping[str, Node]) -> None:
    assert sources.config is not None
    if sources.under == "deepspeed" or (sources.under == "ddp" and split.keys() & {"dp_shard_size", "cp_size"}):
        name, node = next(iter(split.items()))
        raise SpecError(
            f"{name} is {node.summary}, and FSDP is not on",
            allowed="1, or distributed_type: FSDP with fsdp_version: 2",
            remedy="delete parallelism_config, or turn FSDP on",
            place=node.place,
        )
    for size, axis in (("dp_replicate", "dp_replicate"), ("dp_shard", "dp_shard"), ("tp", "tp"), ("cp", "cp")):
        if f"{size}_size" in split:
            draft.say(f"parallel.{axis}.degree", split[f"{size}_size"])
    rotate = sources.config.parallelism.get("cp_comm_strategy")
    if rotate is not None and "cp_size" in split:
        draft.say("parallel.cp.rotate", rotate)


def _suppose_rest(draft: Draft, path: str, world: int, place: str) -> None:
    """The ranks that no axis of JOB.yaml has taken."""
    others = 1
    for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"):
        if path != f"parallel.{axis}.degree" and draft.has(f"parallel.{axis}.degree"):
            others *= _number(draft, f"parallel.{axis}.degree")
    if world % others == 0:
        draft.suppose(path, world // others, place)


def _product(draft: Draft, *axes: str) -> int:
    return math.prod(_number(draft, f"parallel.{axis}.degree") for axis in axes)


def _number(draft: Draft, path: str) -> int:
    """A count, 1 where it is not said or no count: the reader of specs says what is wrong with it."""
    node = draft.get(path)
    value = 1 if node is None else node.value
    return value if isinstance(value, int) and value > 0 else 1


STANDARD_INPUT = "-"
_MODEL = "model.hf_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenJob:
    """What stands on a command line."""

    named: str = ""
    """The path of a file, the name of a model, or `-`; empty where there are sources alone."""
    standard_input: str = ""
    """Its text, where `named` is `-`."""
    words: Shorthand = field(default_factory=Shorthand)
    settings: Sequence[str | Setting] = ()
    """`key=value`, each, or what that comes to."""
    sources: ImportSources | None = None
    """Files of other programs; its words and settings are filled in here."""


def read(given: GivenJob, folder: Path | None) -> ImportedJob:
    """The job; relative paths of options start at `folder`, those of a spec at its own. Raises SpecError.

    Without a folder no file is read: then `named` is a model that planner knows or `-`, and there are no sources.
    """
    settings = [shorthand.parse(each) if isinstance(each, str) else each for each in given.settings]
    if given.sources is not None:
        assert folder is not None
        return import_job(_with_words(given, settings), folder)
    text, source = _text(given, folder)
    if text is None:
        return _of_model(_Model(given.named, "the model"), given.words, settings, folder)
    if (found := _model_of(text, source, given.named)) is not None:
        return _of_model(found, given.words, settings, folder)
    document, start = document_of(text, source, folder if given.named == STANDARD_INPUT else Path(given.named).parent)
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    words = shorthand.of_spec(given.words, document)
    document = shorthand.with_settings(document, [*words.settings, *settings], start)
    return _loaded(document, start, words.supposed)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that no spec describes."""

    name: str
    """Or the path of its config."""
    place: str
    adapter: Mapping[str, Any] | None = None
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _with_words(given: GivenJob, settings: Sequence[Setting]) -> ImportSources:
    assert given.sources is not None
    job = Path(given.named) if given.named else None
    length = given.words.seq
    words = replace(given.words, gpu="", seq="")
    return replace(
        given.sources,
        job=job,
        gpu=given.words.gpu,
        sequence_length=int(length) if length.isdecimal() and len(length) < 20 else length or None,
        words=words,
        settings=settings,
    )


def _text(given: GivenJob, folder: Path | None) -> tuple[str | None, str]:
    """What a person's word leads to, and how to call it; no text for the name of a model."""
    named = given.named
    if named == STANDARD_INPUT:
        return given.standard_input, "standard input"
    if folder is None:
        return None, named
    path = folder / named
    if os.path.isdir(path):
        for name in (peft.FILE, "config.json"):
            if os.path.isfile(path / name):
                return file_text(path / name, f"{named}/{name}"), f"{named}/{name}"
        raise SpecError(
            f"{named} is a folder without a config.json or an {peft.FILE}",
            allowed="a job spec, a bundle, a model's folder, or the name of a model",
            remedy="give the file",
        )
    if not os.path.exists(path):
        if not hf_config.looks_like_path(named):
            return None, named
        raise SpecError(f"there is no file {named}", remedy=did_you_mean(path.name, _files_of(path.parent)))
    return file_text(path, named), named


def _files_of(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:1000]
    except OSError:
        return []


def _model_of(text: str, source: str, named: str) -> _Model | None:
    """The model of a config.json or an adapter's; None for a spec or a bundle."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = read_json(text, source)
    except SpecError:
        return None  # a YAML mapping in braces, or broken: the reader of specs says where
    if isinstance(data, dict) and "model_type" in data:
        return _Model(source, "the model") if named != STANDARD_INPUT else None
    if isinstance(data, dict) and "peft_type" in data:
        found = peft.of_node(node_from_data(data, source))
        return _Model(found.base, source, found.adapter, {source: found.ignored})
    return None


def _of_model(model: _Model, words: Shorthand, settings: list[Setting], folder: Path | None) -> ImportedJob:
    node = node_from_data(model.name, model.place, _MODEL)
    config = hf_config.read(node, folder)
    assert config is not None
    name = os.path.basename(os.path.dirname(model.name) if model.name.endswith(".json") else model.name) or "model"
    document = Node({}, "", "the options")
    facts = [setting("metadata.name", name.lower(), "the model"), setting(_MODEL, config, model.name)]
    if model.adapter is not None:
        facts.append(setting("model.adapter", model.adapter, model.place))
    document = shorthand.with_settings(document, facts, folder)
    meaning = shorthand.of_model(words, document, config, [each.path for each in settings])
    document = shorthand.with_settings(document, [*meaning.settings, *settings], folder)
    if not document.nearest_to("cluster.gpu").path.startswith("cluster.gpu"):
        raise SpecError(
            f"nothing says on which GPU {model.name} is trained",
            allowed="--gpus 4xH100, or --gpu H100 beside --gpus 4",
            remedy=f"write --gpus {words.gpus or 4}xH100",
        )
    return _loaded(document, folder, meaning.supposed, model.ignored)


def _loaded(
    document: Node, folder: Path | None, supposed: Sequence[str], ignored: Mapping[str, tuple[str, ...]] | None = None
) -> ImportedJob:
    job = load_node(document, folder)
    return ImportedJob(job, ignored or {}, (), tuple(supposed), tuple(choices_of(document)))
