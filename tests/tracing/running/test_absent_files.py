"""Weights and data that a program wants and that are not here: which, and how its tool takes a local copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.tracing.program.absent_files import find_absent, say_local

OF_HUB = "`hf download` it before, where planner runs: a program has no network; or tell it of a local copy"


@pytest.mark.parametrize(
    ("lines", "absent", "remedy"),
    [
        (
            "from transformers import AutoConfig\nAutoConfig.from_pretrained('nobody/nothing')",
            "hf://nobody/nothing/config.json is not here: OSError: We couldn't connect",
            OF_HUB,
        ),
        (
            "from huggingface_hub import HfApi\ntry:\n    HfApi().dataset_info('nobody/data')\n"
            "except Exception as error: raise ConnectionError('cannot be reached') from None",
            "hf://datasets/nobody/data is not here: ConnectionError: cannot be reached",
            OF_HUB,
        ),
        (
            "import huggingface_hub as hub\nhub.hf_hub_download('nobody/data', 'a.json', repo_type='dataset')",
            "hf://datasets/nobody/data/a.json is not here",
            OF_HUB,
        ),
        (
            "import os\nos.chdir(os.path.dirname(__file__))\nos.makedirs('kept')\n"
            "open('kept/config.json', 'w').write('{\"model_type\": \"gpt2\"}')\n"
            "from transformers import AutoModel\nAutoModel.from_pretrained('kept')",
            "kept/model.safetensors is not here",
            "put it there, or tell it of a local copy, by an option of its own",
        ),
        (
            "try: open('data/info.json')\nexcept OSError as error: raise ValueError(f'no data: {error}')",
            "rank 0: ValueError: no data: [Errno 2] No such file or directory: 'data/info.json'",
            "put it there, or tell it of a local copy",
        ),
        (
            "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/')",
            "192.0.2.1 is not reached",
            "get what it wants before, where planner runs",
        ),
    ],
    ids=["model", "data set", "file of a data set", "weights", "file", "host"],
)
def test_it_is_named(
    run: Run, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, absent: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ProgramError) as caught:
        run(f"python {program(lines)}")

    assert absent in caught.value.problem
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("said", "absent"),
    [
        ("No file with name: model.safetensors found in /data/llama.", "/data/llama/model.safetensors"),
        ("/data/llama is not a valid directory.", "/data/llama"),
        ("File data/alpaca.json not found.", "data/alpaca.json"),
        ("ninja not found", ""),
    ],
)
def test_so_is_what_tools_say_in_their_own_words(said: str, absent: str) -> None:
    assert find_absent(ValueError(said)) == absent


@pytest.mark.parametrize(
    "lines",
    [
        "try: open('settings.json')\nexcept OSError: raise ValueError('two shapes')",
        "from huggingface_hub import HfApi\nHfApi()\nraise ValueError('two shapes')",
    ],
)
def test_another_error_is_of_nothing_absent(run: Run, program: Program, lines: str) -> None:
    with pytest.raises(ProgramError) as caught:
        run(f"python {program(lines)}")

    assert caught.value.problem == "the program ended with an error of its own on rank 0: ValueError: two shapes"
    assert "local copy" not in caught.value.remedy


def test_a_recipes_tool_is_told_by_its_own_keys(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = tmp_path / "axolotl" / "cli" / "train.py"
    train.parent.mkdir(parents=True)
    train.write_text("open('data/alpaca.jsonl')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(ProgramError) as caught:
        run("axolotl train recipe.yaml --launcher python")

    assert "'data/alpaca.jsonl'" in caught.value.problem
    assert caught.value.remedy == (
        "put it there, or tell it of a local copy (base_model: FOLDER; of a data set path: FILE with ds_type: json)"
    )


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("llamafactory.launcher", "dataset_dir: FOLDER with a dataset_info.json"),
        ("trl.scripts.sft", "--dataset_name FOLDER"),
        ("swift.cli.sft", "--dataset FILE"),
        ("/venv/lib/python3.12/site-packages/recipes/full_finetune_distributed.py", "dataset.data_files=FILE"),
    ],
)
def test_so_is_every_tools(program: str, told: str) -> None:
    assert told in say_local("hf://nobody/nothing", program)
