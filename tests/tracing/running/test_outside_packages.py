"""Packages that a program's job has and this machine has not: who finds them, and what is said of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from program_runs import STEP, Program, Run

from planner.errors import ProgramError, TraceError
from planner.events import Alloc
from planner.job.launching.line import parse
from planner.tracing.program.assumptions import About
from planner.tracing.program.packages import kernels, package_table
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import CrashedError, run_rank
from planner.units import GIB

ATTEND = """
import torch
x = torch.empty(1, 16, 2, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
flash_attn_func(x, x, x).sum().backward()
"""
GUARDED = """
try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None
if flash_attn_func is not None:
""" + "\n".join(f"    {line}" for line in ATTEND.splitlines())  # fmt: skip

WITHOUT_SETUPTOOLS = """
import importlib.machinery, sys
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.startswith("setuptools") else super().find_spec(name, path, target)
sys.meta_path = [Finder if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
"""


def attends(found: RankRun) -> bool:
    return any(
        each.origin is not None and each.origin.op == "flash_attn._flash_attn_forward"
        for each in found.trace.events
        if isinstance(each, Alloc)
    )


def said(found: RankRun) -> list[str]:
    return [f"{each.place}: {each.text}" for each in found.assumptions if each.about is About.PACKAGES]


def test_an_import_that_nobody_catches_is_of_a_package_that_the_job_has(run: Run, program: Program) -> None:
    found = run(f"python {program('from flash_attn import flash_attn_func' + ATTEND + STEP)}")

    assert attends(found)
    assert said(found) == [
        ": flash-attn is not installed here (the program imports it and catches no error): its kernels allocate what "
        "those of 2.8.4 do, and the rest of it is refused by name"
    ]


def test_a_caught_import_fails_and_the_report_says_what_would_change_it(
    run: Run, program: Program, tmp_path: Path
) -> None:
    path = program(GUARDED + STEP)

    without = run(f"python {path}")
    named = run(f"python {path}", packages=("flash-attn",))
    (tmp_path / "requirements-gpu.txt").write_text("torch\nflash_attn>=2.7  # for speed\n")
    listed = run(f"python {path}")

    assert (attends(without), attends(named), attends(listed)) == (False, True, True)
    assert [each.partition(": ")[2] for each in said(without)] == [
        "flash-attn is not installed here, and the program goes on without it; if the job has it: --with flash-attn"
    ]
    assert "requirements-gpu.txt lists it" in said(listed)[0]


def test_a_listed_package_that_is_installed_lacks_what_it_lacks(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / "installed" / "kernels").mkdir(parents=True)
    (tmp_path / "installed" / "kernels" / "__init__.py").write_text("def get_kernel(name): ...\n")
    (tmp_path / "requirements.txt").write_text("kernels\n")
    lines = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\nimport kernels\n"
    lines += "try:\n    import kernels.load\nexcept ModuleNotFoundError:\n    pass\nelse:\n    raise AssertionError\n"

    assert said(run(f"python {program(lines + STEP)}")) == []


def test_a_project_file_lists_packages_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch"]\n[project.optional-dependencies]\ngpu = ["Flash_Attn >= 2"]\n'
    )

    assert package_table.listed([tmp_path]) == {"torch": "pyproject.toml", "flash-attn": "pyproject.toml"}


def test_transformers_uses_it_where_the_command_names_it(run: Run, program: Program) -> None:
    path = program("""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=100,
)
model = LlamaForCausalLM._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.zeros(1, 32, dtype=torch.int64).cuda()
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
""")

    assert attends(run(f"python {path}", packages=("flash-attn",)))
    with pytest.raises(CrashedError, match=r"--with the one that the job has, of flash-attn, flash-attn-3"):
        run(f"python {path}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("import flash_attn\nflash_attn.flash_attn_gpu.fwd", "flash_attn.flash_attn_gpu, which is not modelled"),
        (
            "from flash_attn.layers.rotary import RotaryEmbedding\nclass Mine(RotaryEmbedding): ...\nMine(64)",
            "flash_attn.layers.rotary.RotaryEmbedding, which is not modelled",
        ),
        ("import flash_attn.modules.mha", "imports flash_attn.modules, which is not modelled"),
        ("import mamba_ssm", "needs mamba-ssm, which is not installed here"),
        ("import grouped_gemm", "needs grouped-gemm, which is not installed here"),
        ("import pynvml\npynvml.nvmlDeviceGetFanSpeed(0)", "pynvml.nvmlDeviceGetFanSpeed, which is not answered"),
        (
            "from torch.utils.cpp_extension import load\nload(name='mine', sources=['mine.cu'])",
            "builds an extension 'mine', whose kernels are not modelled",
        ),
        ("from kernels import get_kernel\nget_kernel('some/body')", "loads the kernels of some/body from a hub"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(run: Run, program: Program, lines: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        run(f"python {program(lines)}")


@pytest.mark.parametrize("error", ["(RuntimeError, OSError)", "Exception"])
def test_a_program_that_catches_a_build_goes_its_way_without_the_extension(
    run: Run, program: Program, error: str
) -> None:
    lines = f"""
from torch.utils.cpp_extension import load_inline
try:
    load_inline(name="mine", cpp_sources=[""], functions=[])
except {error}:
    built = False
assert not built
"""

    found = run(f"python {program(lines + STEP)}")

    said = [each.text for each in found.assumptions if each.about is About.PACKAGES]
    assert said == ["the extension mine is not built here, and the program goes on without it"]


@pytest.mark.parametrize(
    ("package", "part", "remedy"),
    [
        ("mamba_ssm", "selective_scan_cuda", "install mamba-ssm, built for the job's torch, as on the cluster"),
        ("apex", "amp_C", "install apex from github.com/NVIDIA/apex, built for the job's torch"),
    ],
)
def test_a_package_without_its_compiled_part_is_to_be_installed_with_it(
    run: Run, program: Program, tmp_path: Path, package: str, part: str, remedy: str
) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"import {part}\n")

    with pytest.raises(TraceError, match=f"with its compiled part {part}, which is not installed here") as caught:
        run(f"python {program(f'import sys; sys.path.insert(0, {str(tmp_path)!r}); import {package}')}")

    assert remedy in caught.value.remedy


def test_copies_of_kernels_on_a_hub_are_known_by_their_names(run: Run, program: Program) -> None:
    lines = """
from kernels import get_kernel
for copy in ("varunneal/flash-attention-3", "some/Flash_Attn3-hopper", "some/flash-attn"):
    get_kernel(copy).flash_attn_varlen_func
"""

    found = run(f"python {program(lines + STEP)}")

    assert [each.text for each in found.assumptions if "by their name" in each.text] == [
        "the kernels of some/Flash_Attn3-hopper are assumed to be those of flash-attn 3, by their name",
        "the kernels of some/flash-attn are assumed to be those of flash-attn 2, by their name",
    ]


def test_a_package_that_nobody_knows_is_refused_before_anything_runs(run: Run, program: Program) -> None:
    with pytest.raises(TraceError, match="no model of a package 'flash-atn'"):
        run(f"python {program(STEP)}", packages=("flash-atn",))


def test_kernels_of_a_users_own(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import torch
def register(kernels):
    kernels.module("my_package.fast", twice=lambda x: torch.empty(2 * x.numel(), device="cuda"))
    kernels.extension("built", thrice=lambda x: torch.empty(3 * x.numel(), device="cuda"))
    kernels.hub("me/kernel", four_times=lambda x: torch.empty(4 * x.numel(), device="cuda"))
""")
    lines = """
import torch
from my_package import fast
from kernels import get_kernel
from torch.utils.cpp_extension import load
x = torch.empty(7, device="cuda")
fast.twice(x), load(name="built", sources=[]).thrice(x), get_kernel("me/kernel").four_times(x)
"""

    found = run(f"python {program(lines + STEP)}", kernels=str(tmp_path / "mine.py"))

    asked = [each.requested_bytes for each in found.trace.events if isinstance(each, Alloc)]
    assert asked[:4] == [28, 56, 84, 112]


def test_kernels_of_cutlass_are_launched_as_nothing(run: Run, program: Program, tmp_path: Path) -> None:
    """As nvidia-cutlass-dsl 4.8 is laid out: flash-attn 4 allocates with torch, and gives the kernel what it made."""
    files = {
        "__init__.py": "",
        "base_dsl/__init__.py": "",
        "base_dsl/compiler.py": "class CompileCallable:\n    def __getitem__(self, options): return self\n"
        "    def __call__(self, *_, **__): raise RuntimeError('cudaErrorNotSupported')\n",
        "cute.py": "from cutlass.base_dsl.compiler import CompileCallable\ncompile = CompileCallable()\n",
    }
    for name, text in files.items():
        path = tmp_path / "cutlass" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    lines = """
import torch
from cutlass import cute
lengths = torch.tensor([3, 5]).cuda()
out = torch.empty(77, device="cuda")
cute.compile["O3"](lambda out, lengths: None, out, options="--enable-tvm-ffi")(out, lengths)
lengths.tolist()
"""

    found = run(f"python {program(lines + STEP)}")

    assert "2 values of int64 read as 1 (any count)" in [each.text for each in found.assumptions]
    assert 77 * 4 in [each.requested_bytes for each in found.trace.events if isinstance(each, Alloc)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [(STEP, ""), ("import torch.utils.cpp_extension", "the program needs setuptools, which is not installed")],
)
def test_an_environment_without_setuptools_builds_nothing_and_trains(
    program: Program, tmp_path: Path, lines: str, said: str
) -> None:
    """As uv makes them; torch's module that builds extensions imports it at once (torch 2.13, utils/cpp_extension.py).
    The interpreter is a fresh one, which has not imported that yet."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_SETUPTOOLS)
    line = parse(["env", f"PYTHONPATH={tmp_path}", "python", program("import torch\n" + lines)])
    gpu = Gpu(product="NVIDIA H100", arch="sm_90", total_bytes=80 * GIB, outside_bytes=GIB)
    order = ProgramOrder(line=line, rank=0, gpu=gpu, writes=True)

    with pytest.raises(ProgramError, match=said) if said else nullcontext():
        assert run_rank(order).is_whole


def test_management_library(run: Run, program: Program) -> None:
    lines = """
import pynvml, torch
held = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 1 and pynvml.nvmlDeviceGetName(0) == "NVIDIA H100 80GB HBM3"
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
assert memory.used == 2**30 + (20 << 20) == torch.cuda.device_memory_used()
assert memory.total == memory.used + memory.free
assert pynvml.nvmlDeviceGetUtilizationRates(0).gpu == 0
assert "1044.000 MB GPU memory" in torch.cuda.list_gpu_processes()
try:
    pynvml.nvmlDeviceGetHandleByIndex(1)
except pynvml.NVMLError as error:
    assert error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT
"""

    found = run(f"python {program(lines + STEP)}")

    device = [each.text for each in found.assumptions if each.about is About.DEVICE]
    assert device == ["the utilization of the GPU was asked for and answered with 0"]


def test_deepspeeds_adam_is_not_built(run: Run, program: Program) -> None:
    lines = """
import torch
from deepspeed.ops.adam import FusedAdam
model = torch.nn.Linear(8, 8, bias=False).cuda()
optimizer = FusedAdam(model.parameters())
model(torch.zeros(2, 8, device="cuda")).sum().backward()
before = torch.cuda.memory_allocated()
optimizer.step()
assert torch.cuda.memory_allocated() == before + 2 * 512
"""

    assert run(f"python {program(lines)}").iterations == 1


def test_the_page_names_every_package_with_its_version() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "packages.md").read_text()

    modelled = [each for each in package_table.PACKAGES if each.is_modelled]
    assert [each.name for each in modelled if f"| {each.name} | {each.version} |" not in page] == []
    assert [each.name for each in package_table.PACKAGES if each.name not in page and not each.instead] == []


def test_an_extension_that_cannot_be_loaded_is_to_be_described(run: Run, program: Program) -> None:
    message = "libcudart.so.12: cannot open shared object file: No such file or directory"

    with pytest.raises(CrashedError, match="describe it with --kernels"):
        run(f"python {program(f'raise ImportError({message!r})')}")


def test_a_file_that_describes_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def registers(kernels): ...\n")

    with pytest.raises(ProgramError, match="has no function register"):
        kernels.read(str(path))
    with pytest.raises(ProgramError, match="there is no file"):
        kernels.read(str(tmp_path / "other.py"))


def test_a_package_has_the_version_that_it_is_named_with(run: Run, program: Program) -> None:
    lines = """
import importlib.metadata
import flash_attn
import torch
assert flash_attn.__version__ == importlib.metadata.version("flash-attn") == "2.7.4"
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
torch.optim.SGD(model.parameters()).step()
"""

    assert run(f"python {program(lines)}", packages=("flash-attn==2.7.4",)).is_whole
