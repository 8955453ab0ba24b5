"""The native part is built once for a cache folder: a program's writes are discarded, and what planner built stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.hardware.catalog import by_name
from planner.job.launching.line import parse
from planner.runtime.overlay import OverlayError
from planner.runtime.user_cache import user_cache
from planner.tracing.program.rank_orders import Gpu, ProgramOrder
from planner.tracing.program.rank_process import CrashedError, run_rank

COMPILER = """#!/bin/sh
while [ $# -gt 1 ]; do
    case $1 in -shared) links=1;; -o) out=$2;; esac
    shift
done
folder=$(dirname $out)
case $(basename $folder) in cuda-*) ;; *) folder=$(dirname $folder);; esac
if [ "$links" ]; then cp {built}/$(basename $folder)/$(basename $out) $out; else touch $out; fi
"""
"""Has every library built already."""


def test_in_a_folder_that_is_new_it_is_built_once(
    run: Run, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program("open(__file__ + '.written', 'w').close()\n1 / 0\n")
    written = Path(f"{path}.written")
    with pytest.raises(CrashedError):
        run(f"python {path}")  # now it is built in the usual folder
    written.unlink()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.replace("{built}", str(user_cache())))
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "scratch"))

    end_by_own_error(path, str(compiler), monkeypatch)
    (built,) = (tmp_path / "scratch/planner").glob("paper-*/libpaper.so")
    first = built.stat().st_mtime_ns
    end_by_own_error(path, "no compiler", monkeypatch)

    assert built.stat().st_mtime_ns == first
    assert not written.exists()


def end_by_own_error(path: str, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program comes to its own error: what it runs on was there."""
    gpu = by_name("H100-SXM-80GB")
    assert gpu is not None
    monkeypatch.setenv("CXX", compiler)
    order = ProgramOrder(
        line=parse(["python", path]), rank=0,
        gpu=Gpu(product=gpu.product, arch=gpu.arch, total_bytes=gpu.total_bytes),
    )  # fmt: skip
    try:
        with pytest.raises(CrashedError, match="ZeroDivisionError"):
            run_rank(order)
    except OverlayError as error:
        pytest.skip(f"no overlay here: {error}")
