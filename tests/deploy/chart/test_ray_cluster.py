"""The cluster of machines, without Kubernetes: Ray's own launcher takes the file, and its commands are Ray's."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml
from rendered_chart import REPOSITORY

FILE = REPOSITORY / "deploy" / "ray" / "cluster.yaml"
TEXT = FILE.read_text(encoding="utf-8")


@pytest.fixture
def cluster() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(TEXT)
    return found


def test_the_launcher_makes_its_cluster_of_it(cluster: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(cluster)
    validate_config(prepared)

    (nodes,) = prepared["available_node_types"].values()
    assert nodes["min_workers"] == len(cluster["provider"]["worker_ips"])


def started(cluster: dict[str, Any], which: str) -> dict[str, Any]:
    """The options of `ray start` in these commands, as Ray's own command line reads them."""
    from ray.scripts.scripts import start

    (line,) = [each for each in cluster[f"{which}_start_ray_commands"] if "ray start" in each]
    words = shlex.split(re.sub(r"\$\{\w+:\+.*?\}", "", line.partition("ray start ")[2]))
    return dict(start.make_context("start", words).params)


def test_the_head_starts_as_ray_understands_it(cluster: dict[str, Any]) -> None:
    options = started(cluster, "head")

    assert (options["head"], options["port"], options["metrics_export_port"]) == (True, 6379, 8080)
    assert options["autoscaling_config"] == "~/ray_bootstrap_config.yaml"


def test_workers_join_the_head(cluster: dict[str, Any]) -> None:
    options = started(cluster, "worker")

    assert (options["head"], options["address"], options["metrics_export_port"]) == (False, "$RAY_HEAD_IP:6379", 8080)


@pytest.mark.parametrize("which", ["head", "worker"])
def test_every_node_reads_its_secrets_from_a_file_and_puts_haproxy_in_front(
    cluster: dict[str, Any], which: str
) -> None:
    line = cluster[f"{which}_start_ray_commands"][-1]

    assert line.startswith("set -a; . ~/planner.env; set +a;")
    assert "RAY_SERVE_ENABLE_HA_PROXY=1" in line


def test_no_secret_stands_in_the_file() -> None:
    assert "PASSWORD=" not in TEXT.replace("REDIS_PASSWORD:+--redis-password=", "")
    assert not re.search(r"[0-9a-f]{32}", TEXT)
