"""The job of whatever a person names: a spec, a bundle, a model, a config.json, an adapter or standard input, together
with the options beside it and the files of other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.importers import peft
from planner.importers.import_sources import ImportedJob, ImportSources
from planner.importers.job_import import import_job
from planner.job import hf_config, overrides, shorthand
from planner.job.json_text import read_json
from planner.job.loading import choices_of, document_of, load_node
from planner.job.nearest import did_you_mean
from planner.job.nodes import Node, node_from_data
from planner.job.overrides import Setting, setting
from planner.job.shorthand import Shorthand
from planner.job.text_files import file_text

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
    settings = [overrides.parse(each) if isinstance(each, str) else each for each in given.settings]
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
    document = overrides.with_settings(document, [*words.settings, *settings], start)
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
    length = given.words.sequence_length
    words = replace(given.words, gpu="", sequence_length="")
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
    document = overrides.with_settings(document, facts, folder)
    meaning = shorthand.of_model(words, document, config, [each.path for each in settings])
    document = overrides.with_settings(document, [*meaning.settings, *settings], folder)
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
