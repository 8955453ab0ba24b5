"""`serve deploy deploy/serve.yaml`: what stands there is what Ray and planner understand."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from planner.errors import SettingError
from planner.service.local_ray import environment, free_port_range
from planner.settings import Settings

CONFIG = Path(__file__).parents[2] / "deploy" / "serve.yaml"


def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    return found


def test_the_arguments_are_settings() -> None:
    settings = Settings.read(config()["applications"][0]["args"], {})

    assert settings == Settings()  # what stands there shows the defaults


@pytest.mark.usefixtures("ray_session")
def test_ray_understands_it_and_its_deployments_are_ours() -> None:
    from ray.serve.schema import ServeDeploySchema

    from planner.service.app import build

    schema = ServeDeploySchema.model_validate(config())
    (application,) = schema.applications
    built = build(application.args)

    names = {deployment.name for deployment in application.deployments}
    assert names == names_of(built)


@pytest.mark.usefixtures("ray_session")
def test_a_setting_that_is_misspelled_is_refused_when_it_is_built() -> None:
    from planner.service.app import build

    with pytest.raises(SettingError, match="trace_worker"):
        build({"trace_worker": 1})


def names_of(application: Any) -> set[str]:
    """The deployments of an application, through the arguments that they are bound to."""
    bound = application._bound_deployment
    inner = [each for each in bound.init_args if hasattr(each, "_bound_deployment")]
    return {bound.name}.union(*(names_of(each) for each in inner))


def test_ports_and_files_of_two_services_on_a_machine_are_their_own(tmp_path: Path) -> None:
    ports = free_port_range()
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        others = free_port_range()
    first, second = environment(tmp_path / "a", ports), environment(tmp_path / "b", others)

    assert not set(ports) & set(others)
    assert {name for name in first if first[name] != second[name]} == {
        "PLANNER_INSTANCE", "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT", "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT",
    }  # fmt: skip


def test_it_is_deployed_as_the_file_says_and_answers(
    service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the controller, as the REST API behind `serve deploy` does it, beside the application of the session."""
    from ray import serve
    from ray.serve._private.client import ServeControllerClient
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    monkeypatch.setenv("PLANNER_DATABASE", f"sqlite:///{tmp_path / 'planner.sqlite'}")
    found = config()
    found["applications"][0] |= {"name": "deployed", "route_prefix": "/deployed"}
    found["applications"][0]["args"] |= {
        "database": f"sqlite:///{tmp_path / 'planner.sqlite'}", "trace_workers": 1,
    }  # fmt: skip
    client: ServeControllerClient = _get_global_client()
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": found["applications"]}), _blocking=False)
    try:
        until = time.monotonic() + 600
        while (status := serve.status().applications["deployed"].status) != "RUNNING":
            assert status != "DEPLOY_FAILED", serve.status().applications["deployed"].message
            assert time.monotonic() < until
            time.sleep(0.25)
        answer = httpx.get(f"{service.base_url}/deployed/livez", timeout=60)
        assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    finally:
        serve.delete("deployed")
