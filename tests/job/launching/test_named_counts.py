"""A program's own arguments may name the GPUs for which it starts ranks itself."""

from __future__ import annotations

import pytest

from planner.job.named_counts import NamedCount, named_count


@pytest.mark.parametrize(
    ("arguments", "gpus", "written"),
    [
        ("-f exp.py -d 8 -b 64 --fp16", 8, "-d 8"),
        ("--config-file mask_rcnn.yaml --num-gpus 4", 4, "--num-gpus 4"),
        ("--trainer.devices=4", 4, "--trainer.devices=4"),
        ("trainer.devices=2 data=coco", 2, "trainer.devices=2"),
        ("model=yolo11n.pt device=0,1,2,3", 4, "device=0,1,2,3"),
        ("--device [0,1]", 2, "--device [0,1]"),
        ("--gpu-ids 0,1,2", 3, "--gpu-ids 0,1,2"),
        ("--job_dir out --ngpus 8 --nodes 4", 8, "--ngpus 8"),
    ],
)
def test_several_gpus_are_read_as_they_are_written(arguments: str, gpus: int, written: str) -> None:
    assert named_count(arguments.split()) == NamedCount(gpus, written)


@pytest.mark.parametrize(
    "arguments",
    ["", "-d", "-d 1", "--devices -1", "--devices auto", "--device 3", "device=cuda:1", "--gpu-ids 2", "-b 8", "8",
     "--num-gpus 99999999999", "--depth 8", "-d data/coco", "--devices ''"],
)  # fmt: skip
def test_one_gpu_a_gpus_number_and_other_arguments_name_no_count(arguments: str) -> None:
    assert named_count(arguments.split()) is None
