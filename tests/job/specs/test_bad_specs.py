"""Every faulty job of tests/job/bad_specs/seen_while_loading.yaml ends in exactly its message, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.job.loading import load_job
from tests.fakes.bad_jobs import BadJob, read_bad_jobs

BAD_JOBS = read_bad_jobs("seen_while_loading.yaml")


@pytest.mark.parametrize("job", BAD_JOBS.values(), ids=BAD_JOBS)
def test_the_message_is_exactly(job: BadJob, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(job.write(tmp_path))
    assert job.shown(str(caught.value), tmp_path) == job.says


def test_a_file_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "not_utf8.yaml"
    path.write_bytes(b'model: {factory: "m:\xff"}\n')
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert str(caught.value).replace(f"{tmp_path}/", "") == "not_utf8.yaml is not UTF-8 text (byte 20)"
