"""Every reader of text as a function of a text, with the words that it looks for.

What JSON, snapshots and measurements are read by stands in tests/fakes/input_readers.py, whose families are larger.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from planner.admission import gpu_requests, slurm_requests, webhook, workload_kinds
from planner.allocator.host.replay import PinnedRules
from planner.allocator.rules import Rules
from planner.errors import SpecError
from planner.hardware import catalog, mig
from planner.job import hf_config, named_gpus, shorthand
from planner.job.json_text import read_json
from planner.job.launching.launchers import deepspeed_size, words_of
from planner.job.launching.line import parse
from planner.job.launching.schedulers import read_script_options
from planner.job.launching.script_calls import unset_variables
from planner.job.loading import load_job
from planner.job.named_jobs import GivenJob, read
from planner.job.nodes import node_from_data
from planner.job.rank_sets import RankSet
from planner.job.size_limits import MOST_JSON_VALUES
from planner.job.trainer import read_file
from planner.job.yaml_text import read_yaml
from planner.searching import axes
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.host_messages import find_host_failures
from planner.units import parse_bytes

Reader = Callable[[str], Any]


def _file(read: Callable[[Path], Any], suffix: str = ".yaml") -> Reader:
    def read_text(text: str) -> Any:
        with tempfile.NamedTemporaryFile("w", suffix=suffix, encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return read(Path(file.name))

    return read_text


def _no_file(path: str) -> str:
    raise SpecError(f"there is no file {path}")


def _read_file(path: Path) -> Any:
    return read_file(node_from_data(str(path), "a file", "trainer.arguments"), Path())


def _read_job(path: Path) -> Any:
    return read(GivenJob(named=str(path)), Path())


def _command(*before: str) -> Reader:
    """`planner run` of a command whose last words are those of the text."""
    return lambda text: parse([*before, *text.split()], _no_file)


def _script(command: str, *arguments: str) -> Reader:
    """`planner run` of a command that names a script of that text."""
    return lambda text: parse([*command.split(), *arguments], lambda _: text)


def _selector(text: str) -> Any:
    return re.search(gpu_requests._ATTRIBUTE.format("productName"), text)


_YAML = (
    "a: ", "- ", "? ", "[", "{", "*a ", "&a ", "!!int ", "'", '"', "# ", "\n", "1_000", "0x", "1.", "<<: ", "|\n",
    "%YAML ", "---\n", "\\", ", ",
)  # fmt: skip
_BROUGHT = ("a: ", "[", "'", "a: 1\n")
"""What a reader of YAML is given that hands its text to the one above."""
_JSON = ('\\"', '"a":1,', "[", "{", "null,", "1", "1.", " ")
_OF_GPUS = (
    "CUDA out of memory. Tried to allocate ", "CUDA out of memory. Tried to allocate 1.00 GiB ", "CUDA ",
    "rank=1 CUDA out of memory. Tried to allocate\n",
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 1.00 GiB of which ",
    "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 1.00 GiB total capacity; 1.00 GiB already allocated; ",
    "Process 1 has 1.00 GiB memory in use. ", "Cuda failure 'out of memory'\n", "CUBLAS_STATUS_ALLOC_FAILED ",
    "Allocation on device 1 would exceed allowed memory. (out of memory) ", "(VllmWorker", 'File "a", line 1, in f\n',
    'File "', "Traceback (most recent call last)\n", "1", " ", "\n", "MPS backend out of memory (MPS allocated: 1 GB, ",
    "OutOfMemoryError: ", "except OutOfMemoryError: ", "Failed to CUDA calloc 1 bytes ", "Error out of memory at "
    "line 1 in ",
    "RESOURCE_EXHAUSTED: ", "is larger than the available ", "CUDA error: ", "\x1b[31m", "> ", "0: ", "\\n",
)  # fmt: skip
_OF_HOSTS = (
    "Out of memory: Killed process 1 (a) ", "Out of memory: Killed process 1 (a)\n Killed process ",
    "Memory cgroup out of memory: Kill process 1 (", "Detected 1 oom-kill event(s) in StepId=a ", "srun: error: ",
    "OUT_OF_MEMORY ", "OOMKilled ", "exit code 137 ", "Task ", "DefaultCPUAllocator: can't allocate memory: ",
    "MemoryError: ", "DataLoader worker (pid ", "memory: usage 1kB, limit 1kB ", " ", "\n", "Killed", "Killed  a",
    "returned non-zero exit status ", "exit code ", "killed by ", "signal 9", "Memory on the node ", "was running was ",
    "unable to mmap ", "/dev/shm/nccl", "No space left", "ibv_reg_mr ", "Failed to "
    "malloc 1", "exceeded ", "job ", "1>2",
    "node was low on resource: memory. ", "Container a was using 1", "] ", "[1] ", "\x1b[", "| ", "pid=1) ", "&gt;",
)  # fmt: skip
_LAUNCH = (
    "A=1 ", "-u ", "-- ", "--a ", "--nnodes=1 ", "--fsdp x ", "--learning_rate 1 ", "srun ", "env ", "nice -n ", "'",
    "\\", "torchrun ", "python ", "uv run ", "conda run ", "sbatch --wrap ", "mpirun -x A=1 ", "-x A ", "exec ",
    "ray job submit ",
)  # fmt: skip
_SHELL = (
    "#SBATCH --nodes=2\n", "#SBATCH --plug-in=1\n", "#SBATCH ", "#", "\n", "A=1\n", "${A:-", "${A}", "$A", '"', "'",
    "\\\n", "-z $A ", "a ", "\ue000",
)  # fmt: skip
_GPU = ("8x", "x", "8 ", "H100 ", " ", "*", "_", "-", "1g.", "1g.10gb", "NVIDIA ", "mig-", "gpu,", "gpu:")

TEXT_READERS: dict[str, tuple[Reader, Sequence[str]]] = {
    "messages of GPUs": (find_messages, _OF_GPUS),
    "messages of hosts": (find_host_failures, _OF_HOSTS),
    "a spec's file": (_file(load_job), _BROUGHT),
    "YAML": (lambda text: read_yaml(text, "a text"), _YAML),
    "JSON": (lambda text: read_json(text, "a text"), _JSON),
    "JSON with an open text": (lambda text: read_json('["' + text + "," * MOST_JSON_VALUES, "a text"), _JSON),
    "a file of the Trainer's": (_file(_read_file), _BROUGHT),
    "a job by its file": (_file(_read_job), _BROUGHT),
    "the words of a line": (lambda text: words_of(text, "a line"), _LAUNCH),
    "a command": (_command(), _LAUNCH),
    "a command of python": (_command("python"), ("-u ", "-W ", "A=1 ", "a ")),
    "a command of srun": (_command("srun"), ("-N 1 ", "-N1 ", "--gres=gpu:8 ", "--export A=1,", "--wrap ", "-u ")),
    "a command of mpirun": (_command("mpirun", "-np", "2"), ("-x A=1 ", "--mca a b ", "-H a,", "--map-by ", "a ")),
    "a command of a shell": (_command("bash"), ("-e ", "-o ", "+x ", "--a ", "a ")),
    "variables of a script": (lambda text: unset_variables(text, {}), _SHELL),
    "options of a batch script": (lambda text: read_script_options(text, "a script", []), _SHELL),
    "a config beside a command": (_script("accelerate launch --config_file a.yaml t.py"), _BROUGHT),
    "a runtime environment": (_script("ray job submit --runtime-env a.yaml -- python t.py"), _BROUGHT),
    "a number of GPUs": (named_gpus.parse, _GPU),
    "a number of GPUs behind a name": (lambda text: named_gpus.parse("H100" + text + "!"), _GPU),
    "a GPU's name": (lambda text: (catalog.by_any_name(text), catalog.by_node_label(text)), _GPU),
    "a MIG profile": (lambda text: mig.without_profile(text + "1g.10gb"), _GPU),
    "Slurm's gres": (slurm_requests.read_gres, _GPU),
    "a resource's product": (gpu_requests.product_in, ("nvidia.com/", "gpu", "tu104gl", "_", "-", "a100", "rtx", "2q")),
    "a resource's name": (workload_kinds.is_gpu_resource, ("nvidia.com/", "gpu", "mig-", "-", "xe", "i915")),
    "a selector of devices": (_selector, ("productName", "productName == ", 'productName == "', " ", '"')),
    "a duration": (webhook.seconds_left, ("1", "1s")),
    "a size": (parse_bytes, ("1", " ", "1.", "G")),
    "an axis": (
        lambda text: axes.parse(f"micro_batch_size={text}"), ("1,", ",", "1..2,", "{", "1..9999:1,", "{a: 1},", "1"),
    ),
    "an axis that ends a brace": (lambda text: axes.parse(f"gpu={text}}}"), ("1,", ",", "{", "H100,", "{,", " ")),
    "--set": (lambda text: shorthand.parse(f"a={text}"), _BROUGHT),
    "the key of --set": (lambda text: shorthand.parse(f"{text}=1"), ("a.", "a", " ")),
    "--lora": (lambda text: shorthand.read_lora("lora", text, "--lora"), ("r=1,", ",", "target=", "+", "alpha=")),
    "a model's name": (lambda text: (hf_config.by_name(text), hf_config.near_models(text)), ("7b", "llama-", "/", ".")),
    "a set of ranks": (RankSet.parse, ("1,", "0-7,", "1", "-", ",")),
    "PYTORCH_ALLOC_CONF": (Rules.from_conf, ("expandable_segments:True,", "roundup_power2_divisions:[", ":", ",", "a")),
    "pinned memory's options": (PinnedRules.from_conf, ("pinned_max_cached_size_mb:1,", "pinned_max_cached_size_mb:")),
    "hosts of DeepSpeed": (lambda text: deepspeed_size({"include": text}), ("a:0,1@", "@", ":", ",")),
}  # fmt: skip
