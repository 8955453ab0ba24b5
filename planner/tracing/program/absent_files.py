"""What a program wanted and is not on this machine: weights, data, tokenizers; and how its tool takes a local copy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

_OF_HUB = "hf://"
_TOLD = {
    "axolotl.": "base_model: FOLDER; of a data set path: FILE with ds_type: json",
    "llamafactory.": "model_name_or_path: FOLDER; dataset_dir: FOLDER with a dataset_info.json that names file_name",
    "trl.scripts.": "--model_name_or_path FOLDER, --dataset_name FOLDER",
    "swift.cli.": "--model FOLDER, --dataset FILE",
    "-packages/recipes/": "checkpointer.checkpoint_dir=FOLDER tokenizer.path=FILE dataset.source=json "
    "dataset.data_files=FILE",
}
"""By what stands in the name of a tool's program: Axolotl 0.18, LLaMA-Factory 0.9.6, TRL 0.19, ms-swift 4.6,
torchtune 0.7."""

_SAID = re.compile(
    r"no file (?:named|with name:) ([^\s,]+).* found in (?:directory )?(\S+?)\.?$"
    r"|^File (\S+) not found|^(\S+) is not a valid directory",
    re.IGNORECASE,
)
"""As transformers 5.23 (modeling_utils.py), torchtune 0.7 (training/checkpointing/_utils.py) and LLaMA-Factory 0.9.6
(data/loader.py) say it."""


def find_absent(error: BaseException) -> str:
    """The repository of the Hugging Face hub (`hf://datasets/owner/name/file`), or the path of the file, for which an
    error was raised; empty for other errors."""
    for each in _with_causes(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if str(frame.f_globals.get("__name__", "")).startswith("huggingface_hub"):
                given = frame.f_locals  # by the names of the parameters of its public functions
                if isinstance(repository := given.get("repo_id"), str):
                    is_data = given.get("repo_type") == "dataset" or frame.f_code.co_name.startswith("dataset_")
                    name = given.get("filename")
                    file = f"/{name}" if isinstance(name, str) else ""
                    return f"{_OF_HUB}{'datasets/' if is_data else ''}{repository}{file}"
        if isinstance(each, FileNotFoundError) and each.filename and str(each.filename) in str(error):
            return str(each.filename)
        if (lacking := _SAID.search(str(each))) is not None:
            return f"{lacking[2]}/{lacking[1]}" if lacking[2] else lacking[3] or lacking[4]
    return ""


def say_local(absent: str, program: str) -> str:
    """What to do about it, in the words of the tool whose program it is."""
    told = next((told for part, told in _TOLD.items() if part in program), "")
    local = f"tell it of a local copy{f' ({told})' if told else ', by an option of its own'}"
    if not absent.startswith(_OF_HUB):
        return f"put it there, or {local}"
    return f"`hf download` it before, where planner runs: a program has no network; or {local}"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
