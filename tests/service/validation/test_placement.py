"""What a cluster has decides at once where a validation runs, or that it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from planner.hardware import catalog
from planner.job import named_gpus
from planner.job.schema import Gpu
from planner.service.validation.measuring_workers import (
    LABEL,
    Node,
    Place,
    RefusedError,
    format_nodes,
    place_on_cpus,
    place_on_gpus,
    read_nodes,
)


def gpu(name: str) -> Gpu:
    found = named_gpus.look_up(name)
    return Gpu(name=found.name, total_bytes=found.total_bytes, arch=found.arch)


def described(resources: dict[str, float], labels: dict[str, str] | None = None, *, alive: bool = True) -> Any:
    """As ray.nodes() has it."""
    return {"Alive": alive, "Resources": resources, "Labels": labels or {}, "NodeManagerAddress": "10.0.0.1"}


def test_a_node_has_the_kind_that_its_label_says_or_else_its_resource() -> None:
    nodes = read_nodes(
        [
            described({"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0}, {LABEL: "H100"}),
            described({"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0}),
            described({"CPU": 2.0}),
            described({"CPU": 8.0, "GPU": 8.0}, {LABEL: "B200"}, alive=False),
        ]
    )
    assert nodes == (
        Node(name="10.0.0.1", cpus=8, gpus=4, kind="H100", labelled=True),
        Node(name="10.0.0.1", cpus=8, gpus=2, kind="A100"),
        Node(name="10.0.0.1", cpus=2),
    )
    assert format_nodes(nodes) == "2 x A100, 4 x H100"


def test_one_process_goes_to_a_gpu_of_the_jobs_kind_by_label() -> None:
    nodes = [
        Node(name="a", cpus=8, gpus=2, kind="A100", labelled=True),
        Node(name="b", gpus=8, kind="H100", labelled=True),
    ]
    assert place_on_gpus(nodes, gpu("H100-SXM-80GB"), 1) == Place(
        bundles=({"GPU": 1.0},), strategy="STRICT_PACK", labels={LABEL: "H100"}
    )


def test_without_labels_it_is_the_resource_that_ray_gives_a_gpu() -> None:
    nodes = [Node(name="a", cpus=8, gpus=2, kind="A100")]
    assert place_on_gpus(nodes, gpu("A100-SXM-40GB"), 2) == Place(
        bundles=({"GPU": 1.0, "accelerator_type:A100": 0.001},) * 2, strategy="STRICT_PACK"
    )


def test_a_world_larger_than_any_node_is_spread_over_several() -> None:
    nodes = [Node(name=name, gpus=4, kind="H100", labelled=True) for name in ("a", "b")]
    assert place_on_gpus(nodes, gpu("H100-SXM-80GB"), 8).strategy == "PACK"


def test_a_gpu_without_a_name_is_any_of_its_architecture() -> None:
    nodes = [
        Node(name="a", gpus=1, kind="H100", labelled=True),
        Node(name="b", gpus=1, kind="H200", labelled=True),
        Node(name="c", gpus=1, kind="A100", labelled=True),
    ]
    nameless = Gpu(total_bytes=80 * 2**30, arch="sm_90")
    assert place_on_gpus(nodes, nameless, 2).labels == {LABEL: "in(H100,H200)"}


def test_a_cluster_without_such_a_gpu_refuses_and_lists_what_it_has() -> None:
    nodes = [Node(name="a", cpus=8, gpus=2, kind="A100", labelled=True), Node(name="b", gpus=1)]
    with pytest.raises(RefusedError) as refused:
        place_on_gpus(nodes, gpu("H100-SXM-80GB"), 1)
    assert str(refused.value) == (
        "no node of this cluster has a GPU of the job's kind, H100-SXM-80GB (in Ray: H100)\n"
        "  allowed: what is there: 2 x A100, 1 x a kind that Ray does not know\n"
        "  change:  validate on a cluster that has one, or say device cpu: that validates the structure only"
    )


def test_a_cluster_without_any_gpu_says_so() -> None:
    with pytest.raises(RefusedError, match="what is there: no GPU on 1 node, 2 CPUs"):
        place_on_gpus([Node(name="a", cpus=2)], gpu("H100-SXM-80GB"), 1)


def test_more_gpus_than_there_ever_are_are_not_waited_for() -> None:
    with pytest.raises(RefusedError, match=r"8 GPUs of the kind H100-SXM-80GB .* are wanted at once") as refused:
        place_on_gpus([Node(name="a", gpus=2, kind="H100", labelled=True)], gpu("H100-SXM-80GB"), 8)
    assert refused.value.remedy == "say mode absent_peers: one GPU is enough for it"


def test_a_processor_each_is_wanted_for_real_peers_without_gpus() -> None:
    nodes = [Node(name="a", cpus=2), Node(name="b", cpus=1)]
    assert place_on_cpus(nodes, 3).strategy == "PACK"
    assert len(place_on_cpus(nodes, 2).bundles) == 2
    with pytest.raises(RefusedError, match="4 CPUs are wanted at once"):
        place_on_cpus(nodes, 4)


def test_every_accelerator_type_of_the_catalog_finds_its_gpu() -> None:
    for known in catalog.gpus().values():
        for alias in known.aliases:
            assert place_on_gpus([Node(name="a", gpus=1, kind=alias)], gpu(known.name), 1).bundles
