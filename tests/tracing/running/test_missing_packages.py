"""What a program needs and this machine has not: named with what to type, and never a name that is anybody's."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError


def needs(run: Run, path: str) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        run(f"python {path}")
    return caught.value


def test_one_that_the_traceback_asks_for_is_to_be_installed_and_what_follows_for_sure_is_named(
    run: Run, program: Program, tmp_path: Path
) -> None:
    """What stands in a function or a branch may never be asked for."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .data import rows\n")
    (tmp_path / "parts" / "data.py").write_text("import no_such_data.files\nrows = 1\n")
    (tmp_path / "evaluating.py").write_text("import no_such_evaluation\n")
    (tmp_path / "requirements.txt").write_text("No.Such.Listed>=2\n")
    path = program("""
from __future__ import annotations
import json, sys, torch, typing
import no_such_package.part as part
import no_such_listed, no_such_package
from parts import rows
from flash_attn import flash_attn_func  # a stand-in is there
import yaml
try:
    import no_such_choice
except ImportError:
    import no_such_second_choice
else:
    import no_such_addition
if typing.TYPE_CHECKING:
    import no_such_types
if "--envpool" in sys.argv:
    import no_such_envpool, evaluating
else:
    import no_such_gym
class Report:
    import liger_kernel.transformers
def export():
    import no_such_export, skimage, no_such_data
""")

    error = needs(run, path)

    assert error.problem == "the program needs no-such-package, which is not installed where planner runs"
    assert error.remedy.partition("; torch for CUDA")[0] == (
        "pip install no-such-package; its files also import no-such-listed, liger-kernel, no-such-data, not installed"
        " here either"
    )
    assert error.place.endswith("program.py:4")


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("tools_of_nobody", "tools_of_nobody/__init__.py"),
        ("tools_of_nobody", "src/tools_of_nobody/core/losses.py"),
        ("tools_of_nobody", "third_party/Tools-LM/tools_of_nobody.py"),
        ("yaml_of_nobody", "recipes/yaml_of_nobody/__init__.py"),
    ],
)
def test_a_module_of_the_programs_repository_is_never_a_package_to_install(
    run: Run, tmp_path: Path, module: str, file: str
) -> None:
    """Whoever has its name on an index is somebody else."""
    for path, text in (("pyproject.toml", ""), (file, ""), ("recipes/train.py", f"import {module}.losses\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "recipes/deep").mkdir()
    program = (tmp_path / "recipes/train.py").rename(tmp_path / "recipes/deep/train.py")

    error = needs(run, str(program))

    found = next(tmp_path.rglob(f"{module}*"))
    assert (
        error.problem == f"the program imports {module}, which lies in its repository and is not on Python's path here"
    )
    assert (
        error.remedy
        == f"install the repository where planner runs, as on the cluster, or set PYTHONPATH={found.parent}"
    )


def test_what_only_a_folder_of_data_is_called_is_a_package(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / "no_such_yaml").mkdir()
    (tmp_path / "no_such_yaml" / "config.yaml").write_text("")

    error = needs(run, program("import sys\nsys.path.pop(0)\nimport no_such_yaml"))

    assert error.remedy == "pip install no-such-yaml"


def test_one_of_the_repository_is_not_named_beside_another(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "lib" / "tools_of_nobody").mkdir(parents=True)
    (tmp_path / "lib" / "tools_of_nobody" / "__init__.py").write_text("")

    error = needs(run, program("import no_such_package\nimport tools_of_nobody"))

    assert error.remedy == "pip install no-such-package"


def test_what_a_library_says_that_it_requires_is_named(run: Run, program: Program) -> None:
    said = "A Tokenizer requires the SentencePieceOfNoKind library but it was not found in your environment."

    error = needs(run, program(f"raise ImportError({said!r})"))

    assert error.remedy == "pip install sentencepieceofnokind"


def test_one_of_the_users_own_kernels_is_none(run: Run, program: Program, tmp_path: Path) -> None:
    kernels = tmp_path / "kernels_of_mine.py"
    kernels.write_text("def register(kernels):\n    kernels.module('my_package.fast', attention=print)\n")
    path = program("import no_such_package\nimport my_package.fast\n")

    with pytest.raises(ProgramError, match="needs no-such-package, which is not"):
        run(f"python {path}", kernels=str(kernels))
