"""What a Slurm job asks for of GPUs is read in the options of sbatch, as its cli_filter has them."""

from __future__ import annotations

import pytest

from planner.admission.slurm_requests import read_gres, read_options

UNSAID = {"nodes": "1-0", "ntasks": "1", "ntasks-per-node": "-2"}
"""As Slurm 22.05 hands them on where nobody says them."""


@pytest.mark.parametrize(
    ("written", "requests"),
    [
        ("gpu", [(1, "", "")]),
        ("gpu:2", [(2, "", "")]),
        ("gpu:h100:8", [(8, "h100", "")]),
        ("gpu:1g.10gb:1", [(1, "", "1g.10gb")]),
        ("gpu:a100_3g.20gb:1,lustre:1", [(1, "a100", "3g.20gb")]),
        ("gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=2", [(2, "nvidia h100 80gb hbm3", "1g.10gb")]),
        ("mps:100", []),
        ("", []),
    ],
)
def test_a_gres_of_slurm(written: str, requests: list[tuple[int, str, str]]) -> None:
    assert [(found.count, found.product, found.profile) for found in read_gres(written)] == requests


def test_a_slice_of_slurm_is_one_of_the_catalog() -> None:
    (found,) = read_gres("gpu:nvidia_h100_80gb_hbm3_1g.10gb:1")
    gpu = found.gpu()

    assert gpu is not None
    assert gpu.name == "H100-SXM-80GB:1g.10gb"


@pytest.mark.parametrize(
    ("options", "gpus", "products"),
    [
        ({"gpus": "4"}, 4, ()),
        ({"gpus": "h100:4"}, 4, ("h100",)),
        ({"gpus": "h100:2,a100:4"}, 6, ("h100", "a100")),
        ({"gpus": "4", "gres": "gres:gpu:8", "nodes": "4"}, 4, ()),
        ({"gres": "gres:gpu:a100:4", "nodes": "2"}, 8, ("a100",)),
        ({"gres": "gres:gpu:4", "ntasks": "16", "ntasks-per-node": "8"}, 8, ()),
        ({"gpus-per-node": "8", "nodes": "2-2"}, 16, ()),
        ({"gpus-per-task": "1", "ntasks": "12"}, 12, ()),
        ({"gpus-per-task": "2", "nodes": "3", "ntasks-per-node": "4"}, 24, ()),
        ({"gpus": "4", "constraint": "a100&ib"}, 4, ("a100",)),
        ({"gpus": "4", "constraint": "[a100|h100]"}, 4, ()),
        ({"gpus": "4", "constraint": "ib"}, 4, ()),
        ({}, 0, ()),
        ({"gres": "lustre:1"}, 0, ()),
    ],
)
def test_gpus_are_those_of_the_whole_job(options: dict[str, str], gpus: int, products: tuple[str, ...]) -> None:
    found = read_options({**UNSAID, **options})

    assert (found.gpus, found.products) == (gpus, products)


@pytest.mark.parametrize("options", [{"nodes": "1-3"}, {"ntasks": "16"}])
def test_how_many_gpus_there_are_is_open_where_the_nodes_are(options: dict[str, str]) -> None:
    assert read_options({**UNSAID, "gres": "gpu:4", **options}).gpus == 0
