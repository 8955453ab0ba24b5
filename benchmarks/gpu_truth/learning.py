"""From the campaign's measurements to facts: the workspaces of its operators, and its steps as planner learns them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_truth.workspace_facts import find_facts
from planner.planning.gpu_truth import LearntFacts, group_of, learn_facts
from planner.truth.measuring.measurement_lines import Measurement

_COMMAND = "make gpu-truth"


def learn_campaign(device: Sequence[Measurement], paper: Sequence[Measurement], folder: Path) -> LearntFacts:
    """Writes what is to be learnt into the folder, beside what other GPUs and versions taught.

    Raises FactsError where the two are not of one torch, or the device is no GPU of the catalog.
    """
    gpu, _ = group_of(device, paper)
    found = find_facts([each for each in device if each.device.kind == "cuda"], paper, gpu=gpu, command=_COMMAND)
    return learn_facts(device, paper, folder, measured=found.facts, unexplained=found.unexplained)
