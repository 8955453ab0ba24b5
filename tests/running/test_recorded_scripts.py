"""What `make speedrun` does around the scripts: errors against what was printed, and scripts as they lay on a disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planner.units import MIB

sys.path.append(str(Path(__file__).parents[1]))
import speedrun  # isort: skip


@pytest.mark.parametrize(
    ("peak_mib", "error"), [(99, -1.0), (100, 0.0), (110, 0.0), (110.9, 0.0), (121, 10.0)], ids=str
)
def test_an_error_is_that_against_the_nearer_end_of_what_was_printed(peak_mib: float, error: float) -> None:
    assert speedrun.error_percent(int(peak_mib * MIB), (100, 110)) == pytest.approx(error)


def test_what_was_not_printed_has_no_error() -> None:
    assert speedrun.error_percent(MIB, (0, 0)) is None


def test_a_module_that_a_log_shows_behind_its_script_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "-" * 40
    (tmp_path / "one.py").write_text(f"import triton_kernels\n\n{line}\n# triton_kernels.py\n{line}\n\nx = 1\n")
    monkeypatch.setattr(speedrun, "TRUTH", tmp_path)

    program = speedrun.write_program(speedrun.Recorded("one.py", (0, 0), (0, 0)), tmp_path / "programs")

    assert program.read_text().split() == ["import", "triton_kernels"]
    assert program.with_name("triton_kernels.py").read_text().split() == ["x", "=", "1"]


def test_tokens_are_as_many_as_the_header_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedrun, "_TRAIN_TOKENS", 5000)
    monkeypatch.setattr(speedrun, "_VALIDATION_TOKENS", 3000)

    speedrun.write_data(tmp_path)

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.pop("fineweb_val_000000.bin") == 256 * 4 + 3000 * 2
    assert set(sizes.values()) == {256 * 4 + 5000 * 2}


def test_a_nightly_runs_with_the_interpreter_of_the_release_after_it() -> None:
    pythons = speedrun.read_pythons("2.7=/seven/bin/python,2.10=/ten/bin/python")

    assert pythons[speedrun.minor_version("2.7.0.dev20250110+cu126")] == "/seven/bin/python"
    assert pythons[speedrun.minor_version("2.10.0+cu128")] == "/ten/bin/python"


@pytest.mark.parametrize("text", ["/a/bin/python", "2=/a/bin/python", "2.7="])
def test_interpreters_without_their_torch_are_refused(text: str) -> None:
    with pytest.raises(speedrun.argparse.ArgumentTypeError, match="is not as"):
        speedrun.read_pythons(text)


def test_the_launcher_of_an_interpreter_is_found_before_others() -> None:
    assert speedrun.start_with("/seven/bin/python", "")["PATH"].startswith("/seven/bin" + speedrun.os.pathsep)
