"""Every key that the installed programs know has its fate in our tables, and our tables know no other."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
from accelerate import ParallelismConfig
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from deepspeed.launcher import runner
from peft import LoraConfig
from torch.distributed.run import get_args_parser
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from planner.job.importers.key_tables import table, tables
from planner.job.importers.training_arguments import TABLES
from planner.job.launching.launchers import OPTIONS

KEYS = tables()["TrainingArguments"].keys
FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}


def test_every_field_of_training_arguments_is_mapped_ignored_or_refused() -> None:
    assert KEYS.keys() - FIELDS.keys() == set()
    assert FIELDS.keys() - KEYS.keys() == set()


def test_no_retired_field_is_back() -> None:
    assert tables()["fields of transformers 4"].keys.keys() & FIELDS.keys() == set()


def test_what_is_renamed_has_the_name_of_today() -> None:
    assert tables()["TrainingArguments"].renamed.keys() & FIELDS.keys() == set()
    for known in (table(*TABLES), table("TRL", *TABLES), tables()["torchtitan"], tables()["Axolotl"]):
        assert [name for name in known.renamed.values() if known.find(name) is None] == []


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.to])
def test_the_default_of_a_mapped_field_is_that_of_transformers(name: str) -> None:
    assert KEYS[name].default == FIELDS[name].default


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.only])
def test_the_default_of_transformers_is_never_refused(name: str) -> None:
    assert any(FIELDS[name].default == value for value in KEYS[name].only)


def test_every_field_of_loraconfig_has_its_fate_and_its_default() -> None:
    fields = {field.name for field in dataclasses.fields(LoraConfig)}
    written, keys = LoraConfig().to_dict(), tables()["LoraConfig"].keys

    assert fields ^ keys.keys() == set()
    assert [name for name, key in keys.items() if key.to and key.default != written[name]] == []
    assert [name for name, key in keys.items() if key.only and written[name] not in key.only] == []


def test_every_option_of_deepspeeds_launcher_is_known() -> None:
    with mock.patch("argparse.ArgumentParser.parse_args", lambda parser, **_: parser):
        parser = runner.parse_args()

    actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    names = {option.lstrip("-") for action in actions for option in action.option_strings}
    alone = {option.lstrip("-") for action in actions if action.nargs == 0 for option in action.option_strings}
    assert names ^ (OPTIONS["deepspeed"]["alone"] | OPTIONS["deepspeed"]["with_value"]) == set()
    assert alone == OPTIONS["deepspeed"]["alone"]


def test_what_is_planned_of_optimizers_exists() -> None:
    of_older = {"adamw_hf", "paged_adamw"}

    assert KEYS["optim"].values.keys() - {each.value for each in OptimizerNames} == of_older


def test_every_key_of_accelerates_config_has_its_fate() -> None:
    fields, keys = {field.name for field in dataclasses.fields(ClusterConfig)}, tables()["accelerate"].keys

    assert fields - keys.keys() == set()
    assert keys.keys() - fields == {"fp16", "dynamo_backend"}  # of older configs, which accelerate reads


def test_every_option_of_accelerate_launch_is_read_ignored_or_refused() -> None:
    options = {
        action.option_strings[-1].lstrip("-").replace("-", "_")
        for action in launch_command_parser()._actions
        if action.option_strings and action.dest != "help"
    }
    for prefix in ("fsdp", "dynamo", "parallelism_config"):
        prefixed = {name for name in options if name.startswith(f"{prefix}_")}
        known = tables()[f"{prefix.removesuffix('_config')}_config"].keys
        assert {name.removeprefix(f"{prefix}_") for name in prefixed} - known.keys() == set(), prefix
        options -= prefixed
    known_options = frozenset.union(*(options for kind, options in OPTIONS["accelerate"].items() if kind != "program"))
    known_options |= tables()["deepspeed_config"].keys.keys()
    assert {name for name in options - known_options if not name.startswith(("fp8_", "megatron_lm_"))} == set()


def test_options_of_accelerate_launch_that_stand_alone_do() -> None:
    alone = {
        option.lstrip("-").replace("-", "_")
        for action in launch_command_parser()._actions
        if action.nargs == 0 and action.dest != "help"
        for option in action.option_strings
    }
    assert alone == OPTIONS["accelerate"]["alone"]


def test_every_option_of_torchrun_is_known_with_or_without_a_value() -> None:
    alone, valued = set(), set()
    for action in get_args_parser()._actions:
        names = {option.lstrip("-").replace("-", "_") for option in action.option_strings}
        (alone if action.nargs == 0 else valued).update(names - {"h", "help"})

    assert alone == OPTIONS["torchrun"]["alone"]
    assert valued == OPTIONS["torchrun"]["with_value"]


def test_every_field_of_accelerates_fsdp_plugin_has_its_fate() -> None:
    renamed = {"fsdp_version": "version", "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap"}
    not_in_files = {"param_init_fn", "state_dict_config", "optim_state_dict_config"}
    fields = {renamed.get(field.name, field.name) for field in dataclasses.fields(FullyShardedDataParallelPlugin)}

    assert fields - tables()["fsdp_config"].keys.keys() == not_in_files


def test_every_size_of_accelerates_parallelism_has_its_fate() -> None:
    fields = {field.name for field in dataclasses.fields(ParallelismConfig)}
    in_files = {name for name in fields if name.endswith(("_size", "_backend"))}

    assert in_files - tables()["parallelism_config"].keys.keys() == set()
