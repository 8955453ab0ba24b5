"""Megatron-LM's launch lines become specs, and what a spec cannot say is refused or named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from importing_folder import Folder

from planner.importers import megatron
from planner.importers.job_import import ImportedJob
from planner.job.printing import short_yaml
from planner.job.schema import Recompute

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8"
    " --ffn-hidden-size 14336 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0 --vocab-size 128256"
    " --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4"
    " --use-distributed-optimizer"
)
DENSE = (
    "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py"
    f" {LLAMA} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"
    " --recompute-activations --overlap-grad-reduce --overlap-param-gather --train-iters 1000 --mock-data"
    " --log-interval 1 --of-nobody 1 2"
)
GPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16"
    " --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size 4 --global-batch-size 64"
    " --bf16 --lr 1.5e-4 --weight-decay 1e-2 --clip-grad 1.0 --recompute-granularity full --recompute-method uniform"
    " --recompute-num-layers 1"
)
EXPERTS = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py"
    f" {LLAMA.replace('128256', '32000').replace('8192', '4096')} --num-experts 8 --moe-router-topk 2"
    " --expert-model-parallel-size 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 1e-2"
)


def imported(folder: Folder, line: str, **given: Any) -> ImportedJob:
    return folder.import_job(**{"megatron": line, "model": None, "sequence_length": None, **given})


def refusal(folder: Folder, line: str, **given: Any) -> str:
    return folder.refusal(**{"megatron": line, "model": None, "sequence_length": None, **given})


@pytest.mark.parametrize(("name", "line"), [("dense", DENSE), ("gpt", GPT), ("experts", EXPERTS)])
def test_a_line_becomes_exactly_this_spec(folder: Folder, golden: Callable[[str], str], name: str, line: str) -> None:
    assert short_yaml(imported(folder, line).job) == golden(f"megatron_{name}.yaml")


def test_what_differs_from_megatrons_own_step_is_said(folder: Folder) -> None:
    found = imported(folder, DENSE)

    assert found.supposed == (
        megatron.STEP,
        megatron.CORE_ATTENTION,
        megatron.SHARDED,
        "of Megatron-LM's own kernels and buffers, not planned: --overlap-grad-reduce, --overlap-param-gather",
    )
    assert found.not_read == ("--of-nobody", "CUDA_DEVICE_MAX_CONNECTIONS")
    assert found.ignored == {"Megatron-LM's line": ("--train-iters", "--mock-data", "--log-interval")}


def test_arguments_may_stand_alone_or_in_a_file(folder: Folder) -> None:
    file = folder.write("arguments.txt", LLAMA.replace(" --", "\n--"))

    of_a_file = imported(folder, file.name, job=folder.write("job.yaml", {"cluster": {"gpus_per_node": 8}})).job
    alone = imported(folder, LLAMA, torchrun="torchrun --nproc-per-node 8 pretrain_gpt.py").job

    assert of_a_file == alone
    assert (alone.parallel.dp_shard.degree, alone.train.gradient_accumulation_steps) == (8, 16)


@pytest.mark.parametrize(
    ("gpus", "layout", "precision"), [(4, "--tensor-model-parallel-size 4", "bf16_autocast"), (8, "", "fsdp_mixed")]
)
def test_parameters_are_mixed_as_they_are_sharded(folder: Folder, gpus: int, layout: str, precision: str) -> None:
    line = f"torchrun --nproc-per-node {gpus} pretrain_gpt.py {LLAMA} {layout}"

    assert imported(folder, line).job.train.precision == precision


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ("", "none"),
        ("--recompute-granularity selective", "none"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 32", "full"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "none"),
    ],
)
def test_recomputation(folder: Folder, arguments: str, mode: str) -> None:
    line = f"torchrun --nproc-per-node 8 pretrain_gpt.py {LLAMA} {arguments}"

    assert imported(folder, line).job.train.recompute == Recompute(mode=mode)


def test_virtual_stages_are_an_interleaved_schedule(folder: Folder) -> None:
    line = (
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {LLAMA} --pipeline-model-parallel-size 4"
        " --num-layers-per-virtual-pipeline-stage 4"
    )

    pp = imported(folder, line).job.parallel.pp

    assert (pp.schedule, pp.split) == ("Interleaved1F1B", (4,) * 8)


def test_context_parallelism_is_a_ring(folder: Folder) -> None:
    cp = imported(folder, f"torchrun --nproc-per-node 8 t.py {LLAMA} --context-parallel-size 4").job.parallel.cp

    assert (cp.degree, cp.rotate) == (4, "alltoall")


def test_a_vocabulary_is_padded_for_the_ranks_of_tp(folder: Folder) -> None:
    line = LLAMA.replace("128256", "50257") + " --tensor-model-parallel-size 2"

    decoder = imported(folder, f"torchrun --nproc-per-node 8 pretrain_gpt.py {line}").job.model.decoder

    assert decoder is not None
    assert decoder.vocab == 50432


@pytest.mark.parametrize(
    ("changed", "first_line"),
    [
        (("--hidden-size 4096", "--hidden-size 4100"),
         "Megatron-LM's line: --hidden-size: --hidden-size is 4100, no multiple of --num-attention-heads (32)"),
        (("--num-layers 32 --hidden-size 4096", ""),
         "Megatron-LM's line: --num-layers: --num-layers is missing or 0; what is missing in all: --num-layers,"
         " --hidden-size"),
        (("--num-query-groups 8", "--num-query-groups 5"),
         "Megatron-LM's line: --num-query-groups: --num-query-groups is 5, and --num-attention-heads 32"),
        (("--group-query-attention", ""),
         "Megatron-LM's line: --num-query-groups: --num-query-groups and --group-query-attention go together, and one"
         " of them is missing"),
        (("--max-position-embeddings 8192", "--max-position-embeddings 4096"),
         "Megatron-LM's line: --max-position-embeddings: --max-position-embeddings is 4096, and --seq-length 8192"),
        (("--swiglu", ""),
         "Megatron-LM's line: --normalization: --normalization stands beside layers that are neither Llama's nor"
         " GPT's"),
        (("--bf16", "--fp16"),
         "Megatron-LM's line: --fp16: --fp16 is true: a loss scale beside parameters in 16 bits is not planned; train"
         " in bf16"),
        (("--bf16", "--bf16 --fp8-format hybrid"),
         'Megatron-LM\'s line: --fp8-format: --fp8-format is "hybrid": fp8 and fp4 are not planned'),
        (("--bf16", "--bf16 --multi-latent-attention"),
         "Megatron-LM's line: --multi-latent-attention: --multi-latent-attention is true: multi-latent attention is"
         " not planned here"),
        (("--bf16", "--bf16 yes"), "Megatron-LM's line: --bf16: --bf16 has a value"),
        (("--num-layers 32", "--num-layers many"), 'Megatron-LM\'s line: --num-layers: --num-layers is "many"'),
        (("--num-layers 32", "--num-lay 32"), "Megatron-LM's line: --num-lay is no whole argument"),
        (("--bf16", "--bf16 --pipeline-model-parallel-size 3"),
         "Megatron-LM's line: --pipeline-model-parallel-size: --pipeline-model-parallel-size is 3 and makes stages of"
         " 10 layers, which do not divide --num-layers (32)"),
        (("--bf16", "--bf16 --context-parallel-size 2 --cp-comm-type a2a"),
         "Megatron-LM's line: --cp-comm-type: --cp-comm-type is a2a, which is not planned"),
        (("--bf16", "--bf16 --recompute-granularity full --recompute-method block --recompute-num-layers 3"),
         "Megatron-LM's line: --recompute-num-layers: --recompute-num-layers is 3 of --recompute-method block"),
        (("--global-batch-size 128", "--global-batch-size 12"),
         "Megatron-LM's line: --micro-batch-size: train.micro_batch_size is 1 on 8 ranks, which does not divide the 12"
         " of a step"),
    ],
)  # fmt: skip
def test_what_megatrons_arguments_may_not_say(folder: Folder, changed: tuple[str, str], first_line: str) -> None:
    line = f"torchrun --nproc-per-node 8 pretrain_gpt.py {LLAMA.replace(*changed)}"

    assert refusal(folder, line).splitlines()[0] == first_line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{GPT} --tensor-model-parallel-size 2", "transformers' GPT-2, which has no plan for it"),
        (f"{GPT} --pipeline-model-parallel-size 2", "transformers' GPT-2, which has no plan for it"),
        (f"{EXPERTS} --moe-shared-expert-intermediate-size 64", "experts of this kind are not planned here"),
        (f"{EXPERTS} --pipeline-model-parallel-size 2", "ep is not planned together with pp"),
        (f"torchrun --nproc-per-node 8 t.py {LLAMA.replace('--use-distributed-optimizer', '')}"
         " --tensor-model-parallel-size 2", "DistributedDataParallel of torch 2.13 takes no DTensors"),
        ("nowhere.txt", "the line starts 'nowhere.txt'"),
        ("--num-layers 2 > log", "is a redirection, and no shell is run"),
    ],
)  # fmt: skip
def test_what_cannot_go_together(folder: Folder, line: str, said: str) -> None:
    assert said in refusal(folder, line)


def test_two_launch_lines_are_one_too_many(folder: Folder) -> None:
    assert refusal(folder, DENSE, torchrun="torchrun --nproc-per-node 8 t.py").splitlines()[0] == (
        "there are two launch lines, of --from-megatron and of --from-torchrun"
    )


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as _folder:
        for _name, _line in (("dense", DENSE), ("gpt", GPT), ("experts", EXPERTS)):
            _path = Path(__file__).parents[1] / "golden" / "imported" / f"megatron_{_name}.yaml"
            _path.write_text(short_yaml(imported(Folder(Path(_folder)), _line).job), encoding="utf-8")
