"""One service with plans of this process, and a browser that looks at it, for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, chromium
from real_service import RealService, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    with serving(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture(scope="module")
def tab(service: RealService) -> Iterator[Browser]:
    with chromium(service.url) as found:
        yield found
