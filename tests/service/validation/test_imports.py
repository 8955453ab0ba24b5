"""The process that measures holds nothing that a training image lacks, or that would stand in its figures."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import planner.service.validation.measuring_process, planner.service.validation.measuring_process
early = {'torch', 'ray', 'pydantic'} & set(sys.modules)
import planner.truth.measuring.job_rank, planner.job.loading
print(sorted(early), sorted({'ray', 'pydantic', 'planner.paper'} & set(sys.modules)))
"""


def test_the_measuring_process_has_neither_ray_nor_pydantic_nor_the_paper_gpu() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stdout == "[] []\n"
