"""Imports one job from all that a person names: specs, models, files of other tools, launch lines."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import hf_config, shorthand
from planner.job.field_checks import FLOATING
from planner.job.importers import (
    accelerate,
    deepspeed,
    fine_tuning,
    fsdp,
    launch_lines,
    torchtitan,
    training_arguments,
)
from planner.job.importers.drafts import Draft, contradiction, read_yaml_file, unite_drafts
from planner.job.importers.fine_tuning import Recipe, tell_accumulation, tell_adapter, tell_model
from planner.job.importers.key_tables import WrittenKeys
from planner.job.json_text import file_text, read_json
from planner.job.layout import AXES
from planner.job.loading import document_of, list_choices, load_node
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
    """The job, and sentences on how it was read."""

    job: Job
    ignored: Mapping[str, tuple[str, ...]]
    """By source: the keys that do not matter to memory, each once."""
    not_read: tuple[str, ...] = ()
    """Words of the launch line that are not fields of TrainingArguments."""
    supposed: tuple[str, ...] = ()
    """What is not given, and what is assumed."""
    chosen: tuple[str, ...] = ()
    """What is given ambiguously, and what is assumed."""


_MODEL = "model.hf_config"
_RECIPE_READERS: Mapping[str, Callable[[Path], Recipe]] = {
    "training_arguments": fine_tuning.read_trl,
    "peft": fine_tuning.read_peft,
    "torchtitan": torchtitan.read,
    "axolotl": fine_tuning.read_axolotl,
    "llama_factory": fine_tuning.read_llama_factory,
}
"""What reads the files of whole jobs, by the name that ImportSources has for them."""


@dataclass(kw_only=True)
class _ParsedSources:
    """All of it, read and checked."""

    given: ImportSources
    arguments: WrittenKeys | None = None
    config: accelerate.Config | None = None
    launch: launch_lines.Launch | None = None
    deepspeed: Node | None = None
    fsdp: Mapping[str, Node] | None = None
    precision: Node | None = None
    recipes: list[Recipe] = field(default_factory=list)
    ignored: dict[str, list[str]] = field(default_factory=dict)

    @property
    def under(self) -> str:
        """What divides the work among the ranks that no axis names."""
        if self.deepspeed is not None:
            return "deepspeed"
        return "fsdp" if self.fsdp is not None or any(recipe.shards for recipe in self.recipes) else "ddp"

    @property
    def place_of_sharding(self) -> str:
        """Where FSDP is asked for."""
        if (own := next((recipe for recipe in self.recipes if recipe.shards), None)) is not None:
            return own.source
        if self.config is not None and self.config.kind() == "FSDP":
            return self.config.top.node("distributed_type").place
        assert self.arguments is not None
        return self.arguments.node("fsdp").place


def import_job(given: ImportSources, folder: Path) -> ImportedJob:
    """The job that the files and the line say together; paths in the line start at `folder`.

    Raises SpecError for what is not understood, for contradictions, and, at once, for all that nobody says.
    """
    sources = _read(given, folder)
    draft = Draft()
    config = _tell_model_and_gpu(draft, given, sources.recipes)
    supposed = _tell_sources(draft, sources)
    for recipe in sources.recipes:
        tell_adapter(draft, recipe, config)
    made_of = "the spec made of all that was given"
    words = shorthand.of_spec(given.words, draft.document(made_of))
    draft.override([*words.settings, *given.settings])
    supposed += [*draft.supposed, *words.supposed]
    supposed += [sentence for recipe in sources.recipes for sentence in recipe.supposed]
    supposed += sources.arguments.supposed if sources.arguments is not None else ()
    supposed += sources.launch.notes if sources.launch is not None else ()
    if config and not draft.has("model.parameter_dtype"):
        # As transformers 5 loads a model: in the dtype of its config.
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
        dtype = dtype if dtype in FLOATING.names else "float32"
        draft.suppose("model.parameter_dtype", dtype, "the model's config")
        supposed.append(f"model.parameter_dtype is {dtype}, as from_pretrained of transformers 5 loads this config")
    if sources.arguments is None and not draft.has("train.optimizer"):
        # Without TrainingArguments the loop is the program's own, and a spec's defaults stand for what it does.
        supposed.append(
            "train.optimizer, train.loss and the rest of train as every spec has them: nothing says what the loop does"
        )
    _check_complete(draft, sources, config)
    world = _tell_ranks(draft, sources)
    if sources.arguments is not None:
        names = training_arguments.without_effect(sources.arguments, sources.under, world)
        recipe_source = next((recipe.source for recipe in sources.recipes if recipe.arguments is not None), "")
        sources.ignored.setdefault(recipe_source or _name(given.training_arguments), []).extend(names)
    start = given.job.parent if given.job else None
    document = draft.document(made_of, start)
    job = load_node(document, start)
    return ImportedJob(
        job=job,
        ignored={source: tuple(dict.fromkeys(names)) for source, names in sources.ignored.items() if names},
        not_read=tuple(dict.fromkeys(sources.launch.not_read)) if sources.launch else (),
        supposed=tuple(dict.fromkeys(supposed)),
        chosen=tuple(list_choices(document, start)),
    )


def _name(path: Path | None) -> str:
    return str(path) if path is not None else "the launch line"


def _read(given: ImportSources, folder: Path) -> _ParsedSources:
    sources = _ParsedSources(given=given)
    if given.torchrun:
        sources.launch = launch_lines.read(given.torchrun, folder)
        sources.arguments, sources.config = sources.launch.arguments, sources.launch.accelerate
        sources.ignored["the launch line"] = [] if sources.arguments is None else list(sources.arguments.ignored)
    if given.accelerate is not None:
        config = accelerate.read(given.accelerate)
        sources.ignored[_name(given.accelerate)] = config.ignored
        sources.config = config if sources.config is None else accelerate.join_configs(config, sources.config)
    for name, reader in _RECIPE_READERS.items():
        if (path := getattr(given, name)) is not None:
            recipe = reader(path)
            sources.recipes.append(recipe)
            sources.ignored[recipe.source] = list(recipe.ignored)
            if recipe.arguments is not None:
                sources.arguments = training_arguments.join_arguments(recipe.arguments, sources.arguments)
    _read_distribution(sources)
    return sources


def _read_distribution(sources: _ParsedSources) -> None:
    given, arguments, config = sources.given, sources.arguments, sources.config
    if given.deepspeed is not None:
        sources.deepspeed = deepspeed.read(given.deepspeed)
        sources.ignored[_name(given.deepspeed)] = deepspeed.list_ignored(sources.deepspeed)
    settings = []
    if arguments is not None:
        named = deepspeed.of_training_arguments(arguments, given_alone=sources.deepspeed is not None)
        sources.deepspeed = deepspeed.same(sources.deepspeed, named)
        settings.append(fsdp.of_training_arguments(arguments))
        sources.precision = training_arguments.read_precision(arguments)
    if config is not None:
        sources.deepspeed = deepspeed.same(
            sources.deepspeed, deepspeed.of_accelerate(config, given_alone=sources.deepspeed is not None)
        )
        settings.append(accelerate.read_fsdp_settings(config, alone=not any(settings)))
        asked = accelerate.read_precision(config)
        if asked is not None and sources.precision is not None and asked.value != sources.precision.value:
            raise contradiction("the precision", sources.precision, asked)
        sources.precision = sources.precision or asked
    asked_for = [keys for keys in settings if keys is not None]
    if asked_for:
        sources.fsdp = unite_drafts(asked_for[0], asked_for[-1])
    if sources.fsdp is not None and sources.deepspeed is not None:
        raise SpecError(
            "DeepSpeed and FSDP are both asked for",
            allowed="one of the two",
            remedy="delete fsdp and fsdp_config, or the DeepSpeed config",
            place=sources.deepspeed.place,
        )


def _tell_model_and_gpu(draft: Draft, given: ImportSources, recipes: Sequence[Recipe]) -> Mapping[str, Any]:
    """Options and JOB.yaml; the content of the model's config.json, if there is one."""
    if given.job is not None:
        overlay = read_yaml_file(given.job, "holds a job spec, which need not be complete")
        draft.overlay(overlay)
        node = overlay.nearest_to(_MODEL)
        if node.path == _MODEL and isinstance(node.value, str):
            draft.replace(_MODEL, draft.read_config(node, given.job.parent), node.place)
    if given.model is not None:
        node = node_from_data(str(given.model), "--model", _MODEL)
        draft.say_value(_MODEL, draft.read_config(node, Path()), str(given.model))
    if given.gpu:
        written = draft.get("cluster.gpu")
        if written is None or written.plain() != given.gpu:
            draft.say_value("cluster.gpu", given.gpu, "--gpu")
    if given.sequence_length is not None:
        draft.say_value("train.sequence_length", given.sequence_length, "--sequence-length")
    for recipe in recipes:
        tell_model(draft, recipe)
    config = draft.get(_MODEL)
    return {} if config is None else config.plain()


def _tell_sources(draft: Draft, sources: _ParsedSources) -> list[str]:
    """Returns what is planned otherwise than it is."""
    for recipe in sources.recipes:
        draft.join(recipe.draft)
    if sources.launch is not None:
        launch_lines.fill_draft(draft, sources.launch)
    if sources.config is not None:
        accelerate.fill_draft(draft, sources.config)
    precision = sources.precision
    if sources.arguments is not None:
        config = sources.deepspeed
        clips = config is None or config.mapping().get("gradient_clipping") is not None
        training_arguments.fill_draft(draft, sources.arguments, clips=clips)
        if draft.has(_MODEL):
            draft.suppose("train.loss", "model", "the Trainer, which hands the labels to the model")
    if sources.deepspeed is not None:
        by_transformers = sources.arguments is not None or sources.config is not None
        deepspeed.fill_draft(draft, sources.deepspeed, precision, by_transformers=by_transformers)
    elif sources.fsdp is not None:
        place = sources.place_of_sharding
        otherwise = fsdp.fill_draft(draft, sources.fsdp, mixed=precision is not None, place=place)
        if precision is None:
            return otherwise
        if precision.value == "fp16":
            problem = "fp16 under FSDP is not planned"
            raise SpecError(problem, allowed="bf16, or none", remedy="train in bf16", place=precision.place)
        # accelerate gathers parameters in bfloat16; under version 1 it runs autocast beside.
        draft.say_value("train.precision", "fsdp_mixed", precision.place)
        if not draft.has("model.adapter"):
            place = f"{precision.place} (accelerate keeps trained parameters in float32)"
            draft.say_value("model.parameter_dtype", "float32", place)
        return otherwise
    elif precision is not None:
        draft.say_value("train.precision", f"{precision.value}_autocast", precision.place)
    return []


def _check_complete(draft: Draft, sources: _ParsedSources, config: Mapping[str, Any]) -> None:
    """Raises SpecError for all that nobody says."""
    given, takes_tokens = sources.given, not config or "vocab_size" in config
    tokens = "train.sequence_length: the tokens of a sequence (--sequence-length N, or JOB.yaml)"
    wanted = {
        (_MODEL, "model.factory", "model.decoder"):
            "model: its config (--model CONFIG.json, or JOB.yaml: model: {hf_config: config.json})",
        ("cluster.gpu", "cluster.gpu.name"):
            f"cluster.gpu: the GPU (--gpu NAME, or JOB.yaml: cluster: {{gpu: {catalog.names()[0]}}})",
        ("train.micro_batch_size",):
            "train.micro_batch_size: the samples of a micro-batch (--batch N, --from-training-arguments, or JOB.yaml:"
            " train: {micro_batch_size: 4})",
        ("train.sequence_length", "train.inputs", "model.factory"):
            tokens if takes_tokens else "",
        ("cluster.nodes", "cluster.gpus_per_node"):
            "cluster.gpus_per_node: how many processes there are (--gpus 8, --from-torchrun 'torchrun ...',"
            " --from-accelerate, or JOB.yaml: cluster: {nodes: 1, gpus_per_node: 8})",
    }  # fmt: skip
    missing = [sentence for paths, sentence in wanted.items() if sentence and not draft.has(*paths)]
    if sources.fsdp is not None and (config or draft.has("model.factory")):
        place, by_trainer = sources.place_of_sharding, sources.arguments is not None
        missing += fsdp.tell_parts(draft, sources.fsdp, config, place, by_trainer=by_trainer)
    if not missing:
        return
    files = (given.training_arguments, given.accelerate, given.deepspeed, given.peft, given.torchtitan, given.axolotl)
    names = [str(path) for path in (*files, given.llama_factory) if path is not None]
    names += ["the launch line"] if given.torchrun else []
    lines = "".join(f"\n    {sentence}" for sentence in missing)
    raise SpecError(
        f"{', '.join(names)} do not say everything that decides memory; what is missing:{lines}",
        allowed="what these files cannot say, by options or in a JOB.yaml",
        remedy=f"add {'it' if len(missing) == 1 else 'all of these'}",
    )


def _tell_ranks(draft: Draft, sources: _ParsedSources) -> int:
    """How many ranks each axis has; returns how many there are."""
    nodes = draft.count("cluster.nodes")
    world = nodes * draft.count("cluster.gpus_per_node")
    sizes = {} if sources.config is None else sources.config.parallelism.nodes
    split = {name: node for name, node in sizes.items() if name.endswith("_size") and node.value != 1}
    if split:
        if sources.under == "deepspeed" or (sources.under == "ddp" and split.keys() & {"dp_shard_size", "cp_size"}):
            name, node = next(iter(split.items()))
            raise SpecError(
                f"{name} is {node.summary}, and FSDP is not on",
                allowed="1, or distributed_type: FSDP with fsdp_version: 2",
                remedy="delete parallelism_config, or turn FSDP on",
                place=node.place,
            )
        for axis in ("dp_replicate", "dp_shard", "tp", "cp"):
            if f"{axis}_size" in split:
                draft.say(f"parallel.{axis}.degree", split[f"{axis}_size"])
        rotate = sizes.get("cp_comm_strategy")
        if rotate is not None and "cp_size" in split:
            draft.say("parallel.cp.rotate", rotate)
    elif sources.under == "fsdp":
        if sources.fsdp is not None and fsdp.is_hybrid(sources.fsdp):
            draft.suppose("parallel.dp_replicate.degree", nodes, sources.place_of_sharding)
        _suppose_rest(draft, "dp_shard", world, sources.place_of_sharding)
    else:
        _suppose_rest(draft, "dp_replicate", world, "the number of processes")
    if sources.under == "ddp" and sources.arguments is not None and world > 1:
        training_arguments.tell_ddp(draft, sources.arguments)
    data_ranks = math.prod(draft.count(f"parallel.{axis}.degree") for axis in ("dp_replicate", "dp_shard", "ep"))
    for recipe in sources.recipes:
        tell_accumulation(draft, recipe, data_ranks)
    if sources.fsdp is not None:
        syncs = sources.arguments is not None and training_arguments.syncs_each_batch(sources.arguments)
        draft.suppose("parallel.dp_shard.no_sync", not syncs, sources.place_of_sharding)
    return world


def _suppose_rest(draft: Draft, rest: str, world: int, place: str) -> None:
    """The ranks that no axis of JOB.yaml has taken."""
    others = math.prod(draft.count(f"parallel.{axis}.degree") for axis in AXES if axis != rest)
    if world % others == 0:
        draft.suppose(f"parallel.{rest}.degree", world // others, place)


STANDARD_INPUT = "-"


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
    try:
        return _read_given(given, folder)
    except SpecError as error:
        raise shorthand.in_options(error) from None


def _read_given(given: GivenJob, folder: Path | None) -> ImportedJob:
    settings = [shorthand.parse(written) if isinstance(written, str) else written for written in given.settings]
    if given.sources is not None:
        assert folder is not None
        length = given.words.seq
        sources = replace(
            given.sources,
            job=Path(given.named) if given.named else None,
            gpu=given.words.gpu,
            sequence_length=int(length) if length.isdecimal() and len(length) < 20 else length or None,
            words=replace(given.words, gpu="", seq=""),
            settings=settings,
        )
        return import_job(sources, folder)
    text, source = _text(given, folder)
    model = _Model(given.named, "the model") if text is None else _model_of(text, source, given.named)
    if text is None or model is not None:
        assert model is not None
        return _of_model(model, given.words, settings, folder)
    document, start = document_of(text, source, folder if given.named == STANDARD_INPUT else Path(given.named).parent)
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    words = shorthand.of_spec(given.words, document)
    document = shorthand.with_settings(document, [*words.settings, *settings], start)
    return _loaded(document, start, words.supposed)


def is_model(named: str) -> bool:
    """Whether what stands in the place of a job is a model's name, its folder or its config.json, and no spec."""
    if named == STANDARD_INPUT or not named:
        return False
    if os.path.isfile(named):
        with contextlib.suppress(SpecError):
            data = read_json(file_text(Path(named), named), named) if named.lower().endswith(".json") else None
            return isinstance(data, dict) and "model_type" in data
        return False
    return os.path.isdir(named) or not hf_config.looks_like_path(named)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that no spec describes."""

    name: str
    """Or the path of its config."""
    place: str
    adapter: Mapping[str, Any] | None = None
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _text(given: GivenJob, folder: Path | None) -> tuple[str | None, str]:
    """What a person's word leads to, and how to call it; no text for the name of a model."""
    named = given.named
    if named == STANDARD_INPUT:
        return given.standard_input, "standard input"
    if folder is None:
        return None, named
    path = folder / named
    if os.path.isdir(path):
        for name in (fine_tuning.ADAPTER_FILE, "config.json"):
            if os.path.isfile(path / name):
                return file_text(path / name, f"{named}/{name}"), f"{named}/{name}"
        raise SpecError(
            f"{named} is a folder without a config.json or an {fine_tuning.ADAPTER_FILE}",
            allowed="a job spec, a bundle, a model's folder, or the name of a model",
            remedy="give the file",
        )
    if not os.path.exists(path):
        if not hf_config.looks_like_path(named):
            return None, named
        neighbours: list[str] = []
        with contextlib.suppress(OSError):
            neighbours = sorted(os.listdir(path.parent))[:1000]
        raise SpecError(f"there is no file {named}", remedy=did_you_mean(path.name, neighbours))
    return file_text(path, named), named


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
        adapter = fine_tuning.read_adapter(node_from_data(data, source))
        return _Model(adapter.base, source, adapter.adapter, {source: adapter.ignored})
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
    meaning = shorthand.of_model(words, document, config, [given.path for given in settings])
    document = shorthand.with_settings(document, [*meaning.settings, *settings], folder)
    if not document.nearest_to("cluster.gpu").path.startswith("cluster.gpu"):
        raise SpecError(
            f"nothing says on which GPU {model.name} is trained",
            allowed="--gpus 4xH100, or --gpu H100 beside --gpus 4",
            remedy=f"write --gpus {words.gpus or 4}xH100",
        )
    supposed = [*hf_config.describe_mirror(model.name, folder), *meaning.supposed]
    return _loaded(document, folder, supposed, model.ignored)


def _loaded(
    document: Node, folder: Path | None, supposed: Sequence[str], ignored: Mapping[str, tuple[str, ...]] | None = None
) -> ImportedJob:
    job = load_node(document, folder)
    return ImportedJob(job, ignored or {}, (), tuple(supposed), tuple(list_choices(document, folder)))
