import pytest

pytest.register_assert_rewrite("cpu_runs")
