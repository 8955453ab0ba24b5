"""Launch lines, scripts and config files that nobody writes to start a job."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostileLaunch:
    """A command as it stands in a request, and the files that it may name."""

    command: str | list[str]
    files: dict[str, str] = field(default_factory=dict)


def script(*lines: str) -> HostileLaunch:
    return HostileLaunch("bash run.sh", {"run.sh": "\n".join(lines)})


FOUND_BEFORE: dict[str, HostileLaunch] = {
    "a variable of 200 KiB": script(f"export A={'x' * 200_000}", "python t.py"),
    "a variable that doubles": script("A=xxxxxxxx", *["A=$A$A"] * 30, "export A", "python t.py"),
    "half of a pair": HostileLaunch(
        ["ray", "job", "submit", "--runtime-env-json", '{"env_vars": {"A": "\\ud800"}}', "--", "python", "t.py"]
    ),
    "a thousand wrappers": script("exec " * 1000 + "x"),
    "a script of one word": script("\\a" * 600_000, "python t.py"),
    "a script of many variables": script(*[f"export a{n}=1" for n in range(50_000)], "python t.py"),
    "shift by a power": script("shift \u00b2", "python t.py"),
    "marks without end": script("\ue000" * 300_000, "python t.py"),
    "marks in a word": HostileLaunch(["python", "\ue000" * 60_000]),
    "a step in an allocation of a range": HostileLaunch("sbatch run.sh", {
        "run.sh": "#SBATCH --nodes=1-4 --ntasks-per-node=\u00b2\nsrun -n 2 python t.py"
    }),
    "a step of a power": HostileLaunch("sbatch run.sh", {
        "run.sh": "#SBATCH --nodes=2 --ntasks-per-node=4\nsrun -n \u00b2 python t.py"
    }),
    "more ranks than there are": HostileLaunch("torchrun --nnodes 1000000 --nproc-per-node 1000000 t.py"),
    "all of a million ranks": HostileLaunch("torchrun --nnodes 1000 --nproc-per-node 1000 t.py"),
    "a runtime environment of brackets": HostileLaunch(
        ["ray", "job", "submit", "--runtime-env-json", "[" * 60_000, "--", "python", "t.py"]
    ),
    "a config of aliases": HostileLaunch("accelerate launch --config_file a.yaml t.py", {
        "a.yaml": "a: &a [x,x]\n" + "".join(f"b{n}: &b{n} [*{'b' + str(n - 1) if n else 'a'}, *a]\n" for n in range(90))
    }),
    "a config whose numbers are lists": HostileLaunch("accelerate launch --config_file a.yaml t.py", {
        "a.yaml": "num_processes: [1]\nnum_machines: {a: 1}"
    }),
    "wrapped in itself": script("bash run.sh"),
}  # fmt: skip
"""Each ended in a 500, or took more than it may."""

_WORDS = (
    "torchrun", "accelerate", "launch", "deepspeed", "python", "-m", "torch.distributed.run", "srun", "mpirun",
    "sbatch", "ray", "job", "submit", "--", "bash", "-c", "run.sh", "t.py", "env", "A=1", "-u", "nice", "-n", "uv",
    "run", "conda", "exec", "--nproc-per-node", "--nnodes", "1:4", "-np", "-N2", "--map-by", "ppr:8:node",
    "--config_file", "a.yaml", "--runtime-env", "--runtime-env-json", '{"env_vars": {"A": 1}}', "--wrap", "-H",
    "a:2,b:x", "--include", "w@x:0,1", "8", "0", "-1", "9" * 30, "\u00b2", "", "-", "--=", "=", "$A", "${A:-$B}",
    "$((A*9999999999))", "`x`", "'", '"', "\\", "\ue000x\ue001", "\udcff", "\u202e", "x" * 5000, ";", "|", "&&", "(",
    "{", "if", "for", "[[", "eval", "<<E", ">", "cd", "..", "/", "export", "A=$A$A", "set", "shift", "unset",
    "#SBATCH --nodes=2", "$@", "$1", "$#", "num_processes: 2", "{a: b}", "- - -", "&a *a", "\t", "\n",
)  # fmt: skip


def hostile_launches(count: int, seed: int = 0) -> Iterator[HostileLaunch]:
    """So many, the same for a seed; those that were found before come first."""
    chosen = random.Random(seed)
    yield from list(FOUND_BEFORE.values())[:count]
    for _ in range(count - len(FOUND_BEFORE)):
        words = [chosen.choice(_WORDS) for _ in range(chosen.randint(0, 12))]
        files = {
            name: chosen.choice([" ", "\n"]).join(chosen.choice(_WORDS) for _ in range(chosen.randint(0, 30)))
            for name in ("run.sh", "a.yaml")
        }
        begun = chosen.choice([[], [], ["bash", "run.sh"], ["sbatch", "run.sh"], ["torchrun"], ["srun"], ["mpirun"]])
        yield HostileLaunch(" ".join(begun + words) if chosen.random() < 0.3 else begun + words, files)


def as_body(launch: HostileLaunch, path: str) -> bytes:
    return json.dumps({"command": launch.command, "path": path}).encode()
