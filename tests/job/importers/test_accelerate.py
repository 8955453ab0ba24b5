"""What `accelerate config` saves, said in the keys of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from foreign_files import FSDP_2, ZERO, accelerate_answers, accelerate_config, training_arguments
from importing_folder import ZERO_2, Folder

from planner.job.printing import job_yaml
from planner.job.schema import Cluster, Compile, DpReplicate, DpShard, Job


@pytest.fixture
def launched(folder: Folder) -> Callable[..., Job]:
    """The job of such a config."""

    def job(**changed: Any) -> Job:
        config = accelerate_config(folder.path / "accelerate.yaml", **changed)
        return folder.import_job(accelerate=config, job=folder.own_loop()).job

    return job


MULTI_GPU = {"Which type of machine": "multi-GPU", "How many GPU(s)": "4", "mixed precision": "bf16"}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (MULTI_GPU, ("bf16_autocast", DpReplicate(degree=4), DpShard(), None)),
        (
            {**MULTI_GPU, "FullyShardedDataParallel": "yes", "offload parameters": "yes"},
            (
                "fsdp_mixed",
                DpReplicate(),
                DpShard(
                    degree=4, groups=("model.embed_tokens", "model.norm lm_head"), keep_last=True, offload="cpu",
                    reduce_dtype="bfloat16", no_sync=True,
                ),
                None,
            ),
        ),
        (
            {**MULTI_GPU, "Do you want to use DeepSpeed": "yes", "optimization stage": "1"},
            (
                "none",
                DpReplicate(degree=4),
                DpShard(),
                {
                    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                    "gradient_accumulation_steps": 1, "gradient_clipping": "auto", "zero_optimization": {"stage": 1},
                    "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
                },
            ),
        ),
    ],
)  # fmt: skip
def test_what_the_questionnaire_saves(folder: Folder, answers: dict[str, str], expected: tuple[Any, ...]) -> None:
    config = accelerate_answers(folder.path / "default_config.yaml", answers)

    job = folder.import_job(accelerate=config, job=folder.own_loop()).job

    parallel = job.parallel
    assert (job.train.precision, parallel.dp_replicate, parallel.dp_shard, parallel.deepspeed) == expected


def test_several_gpus_are_replicas_under_autocast(launched: Callable[..., Job]) -> None:
    job = launched(num_machines=2, num_processes=8)

    assert (job.cluster.nodes, job.cluster.gpus_per_node) == (2, 4)
    assert (job.parallel.dp_replicate, job.train.precision) == (DpReplicate(degree=8), "bf16_autocast")


def test_fsdp_2_whole(launched: Callable[..., Job], golden: Callable[[str], str]) -> None:
    job = launched(distributed_type="FSDP", fsdp_config=dict(FSDP_2))

    assert job_yaml(job) == golden("accelerate_fsdp_2.yaml")


def test_deepspeed_whole(launched: Callable[..., Job], golden: Callable[[str], str]) -> None:
    job = launched(distributed_type="DEEPSPEED", deepspeed_config={**ZERO, "offload_optimizer_device": "cpu"})

    assert job_yaml(job) == golden("accelerate_deepspeed.yaml")


def test_axes_are_those_of_parallelism_config(launched: Callable[..., Job]) -> None:
    job = launched(
        distributed_type="FSDP",
        fsdp_config=dict(FSDP_2),
        parallelism_config={
            "parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2,
            "parallelism_config_tp_size": 1, "parallelism_config_cp_size": 2,
            "parallelism_config_cp_comm_strategy": "alltoall",
        },
    )  # fmt: skip

    assert (job.parallel.dp_replicate.degree, job.parallel.dp_shard.degree) == (2, 2)
    assert (job.parallel.cp.degree, job.parallel.cp.rotate) == (2, "alltoall")


def test_a_deepspeed_file_lies_beside_the_config(folder: Folder) -> None:
    folder.write("ds/zero2.json", ZERO_2)
    config = accelerate_config(
        folder.path / "accelerate.yaml",
        distributed_type="DEEPSPEED",
        deepspeed_config={"deepspeed_config_file": "ds/zero2.json", "zero3_init_flag": False},
    )
    arguments = folder.write("args.json", training_arguments())

    job = folder.import_job(accelerate=config, training_arguments=arguments).job

    assert job.parallel.deepspeed is not None
    assert job.parallel.deepspeed["bf16"] == {"enabled": True}
    assert job.parallel.dp_replicate == DpReplicate(degree=8)


def test_a_precision_of_no_leaves_it_to_the_training(folder: Folder) -> None:
    config = accelerate_config(folder.path / "accelerate.yaml", mixed_precision="no")
    arguments = folder.write("args.json", training_arguments(fp16=True))

    assert folder.import_job(accelerate=config, training_arguments=arguments).job.train.precision == "fp16_autocast"


def test_tied_weights_are_sharded_with_the_head(folder: Folder) -> None:
    config = accelerate_config(folder.path / "a.yaml", distributed_type="FSDP", fsdp_config=dict(FSDP_2))
    job = folder.write(
        "job.yaml",
        "model: {hf_config: tied.json}\ncluster: {gpu: H100-SXM-80GB}\n"
        "train: {sequence_length: 64, micro_batch_size: 1}\n",
    )
    folder.write("tied.json", {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 10})

    found = folder.import_job(accelerate=config, job=job, model=None, gpu="", sequence_length=None).job

    assert found.parallel.dp_shard == DpShard(
        degree=8,
        keep_last=True,
        groups=("model.norm model.embed_tokens lm_head",),
        reduce_dtype="bfloat16",
        no_sync=True,
    )


def test_one_process_is_one_gpu(launched: Callable[..., Job]) -> None:
    job = launched(
        distributed_type="NO", num_processes=1, mixed_precision="no", dynamo_config={"dynamo_backend": "INDUCTOR"}
    )

    assert (job.cluster, job.train.compile) == (Cluster(gpu=job.cluster.gpu), Compile(scope=("model",)))
