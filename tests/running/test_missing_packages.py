"""What a program needs and this machine has not: named all at once, with what to type."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Run

from planner.errors import ProgramError

Program = Callable[[str], str]
HAS_TRITON = importlib.util.find_spec("triton") is not None


def needs(run: Run, path: str) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        run(f"python {path}")
    return caught.value


def test_all_that_its_files_import_is_named_where_the_first_is_missing(
    run: Run, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .data import rows\n")
    (tmp_path / "parts" / "data.py").write_text("import no_such_data.files\nrows = 1\n")
    (tmp_path / "requirements.txt").write_text("No.Such.Listed>=2\n")
    path = program("""
from __future__ import annotations
import json, torch, typing
import no_such_package.part as part
import no_such_listed, no_such_package
from parts import rows
from flash_attn import flash_attn_func  # a stand-in is there
import yaml
try:
    import no_such_choice
except ImportError:
    no_such_choice = None
if typing.TYPE_CHECKING:
    import no_such_types
class Report:
    import liger_kernel.transformers
def export():
    import no_such_export, skimage, no_such_data
""")

    error = needs(run, path)

    assert error.problem == (
        "the program needs no-such-package, no-such-listed, liger-kernel, triton, no-such-data, which are not "
        "installed where planner runs"
    ).replace("triton, ", "" if HAS_TRITON else "triton, ")
    assert error.remedy.startswith("pip install no-such-package no-such-listed liger-kernel ")
    assert "; functions of it also import no-such-export, scikit-image" in error.remedy
    assert error.place.endswith("program.py:4")


@pytest.mark.skipif(HAS_TRITON, reason="triton is installed here")
@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        (
            "import no_such_piece\nimport triton\ntorch.compile(torch.sin)",
            "no-such-piece, triton",
        ),
        ("import no_such_piece\nimport triton, re\nre.compile('a')", "no-such-piece"),
        (
            "compiled = torch.compile(lambda x: x.cumsum(0))\ncompiled(torch.ones(4096, 64, device='cuda'))",
            "triton",
        ),
    ],
)
def test_triton_is_planners_need_and_no_fault_of_the_program(
    run: Run, program: Program, lines: str, needed: str
) -> None:
    error = needs(run, program(f"import torch\n{lines}\n"))

    assert error.problem.startswith(f"the program needs {needed}, which ")
    assert error.remedy.startswith(f"pip install {needed.replace(',', '')}")
    assert ("its build for CPUs, which planner can run on, does not" in error.remedy) == ("triton" in needed)
    assert "program.py:" in error.place


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
