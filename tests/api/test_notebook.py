"""The notebook of the examples runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "planning.ipynb"


def test_every_cell_runs_and_shows_what_it_says() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [each.outputs[-1] for each in notebook.cells if each.cell_type == "code"]

    assert "Fits: " in shown[0].data["text/html"]
    assert "\nqwen3-0.6b\n" in shown[1].text
    assert shown[4].data["text/plain"].startswith("qwen3-8b does not fit: a rank needs at least ")
    assert shown[5].data["text/html"].startswith("<pre>micro_batch_size ")
    assert "by least memory, each proven by a plan" in shown[6].data["text/html"]
