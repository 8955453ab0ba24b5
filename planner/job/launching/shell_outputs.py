"""What commands print that scripts take values from: those whose output their arguments decide, or the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from planner.job.launching.schedulers import ADDRESS
from planner.job.launching.shell_values import UNKNOWN, Shell, arithmetic

_GPU_NAMES = re.compile(r"-L|--list-gpus|--query-gpu=\S+")
_COUNTS_GPUS = re.compile(r"torch\.cuda\.device_count\(\)\s*\)?$")
_MOST = 4096
"""Lines and numbers of an output."""
Printer = Callable[[Sequence[str], str | None, Shell], str | None]


def command_output(words: Sequence[str], given: str | None, shell: Shell) -> str | None:
    """What a command prints when it is `given` this; None if that is not known here."""
    printer = _PRINTERS.get(PurePosixPath(words[0]).name)
    if printer is None or (words[0] not in ("echo", "printf") and any(UNKNOWN.search(word) for word in words)):
        return None
    if given is not None and UNKNOWN.search(given) and words[0] not in ("echo", "printf"):
        return None
    return printer(words[1:], given, shell)


def node_names(listed: str) -> list[str]:
    """Of Slurm's list: `node[1-2,7],login`."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", listed):
        name, _, numbers = part.strip(",").partition("[")
        for each in numbers.rstrip("]").split(",") if numbers else [""]:
            first, _, last = each.partition("-")
            if first.isdigit() and (last or first).isdigit() and int(last or first) - int(first) < _MOST:
                names += [f"{name}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1)]
            elif not each:
                names.append(name)
    return names


def _scontrol(words: Sequence[str], _: str | None, shell: Shell) -> str | None:
    if [word[:8] for word in words[:2]] != ["show", "hostname"]:
        return None
    listed = words[2] if words[2:] else shell.variables.get("SLURM_JOB_NODELIST", "")
    return "".join(f"{name}\n" for name in node_names(listed)) or None


def _echo(words: Sequence[str], *_: object) -> str:
    ends = "" if words[:1] == ["-n"] else "\n"
    return " ".join(word for number, word in enumerate(words) if number or word not in ("-e", "-n")) + ends


def _printf(words: Sequence[str], *_: object) -> str | None:
    if not words:
        return ""
    form, values = words[0].replace("\\n", "\n"), [*words[1:]]
    if re.search(r"%[^s%d]", form):
        return None
    return re.sub(r"%[sd]", lambda _: values.pop(0) if values else "", form)


def _srun(words: Sequence[str], given: str | None, shell: Shell) -> str | None:
    """`srun --nodes=1 -w NODE hostname --ip-address`: where nodes meet."""
    at = next((at for at, word in enumerate(words) if word in ("hostname", "echo")), None)
    return command_output(words[at:], given, shell) if at is not None and "bash" not in words else None


def _hostname(words: Sequence[str], *_: object) -> str:
    is_address = any(word.startswith(("--ip", "--all-ip")) or word in ("-i", "-I") for word in words)
    return f"{ADDRESS}\n" if is_address else "node1\n"


def _pwd(_: Sequence[str], __: str | None, shell: Shell) -> str | None:
    if shell.folder.startswith("/"):
        return shell.folder
    here = shell.variables.get("PWD", "")
    return f"{here}/{shell.folder}".rstrip("/") if here else None


def _nvidia_smi(words: Sequence[str], _: str | None, shell: Shell) -> str | None:
    return "GPU\n" * shell.gpus if any(map(_GPU_NAMES.fullmatch, words)) and shell.gpus else None


def _python(words: Sequence[str], _: str | None, shell: Shell) -> str | None:
    counts = words[:1] == ["-c"] and "print" in "".join(words[1:2]) and _COUNTS_GPUS.search("".join(words[1:2]))
    return f"{shell.gpus}\n" if counts and shell.gpus else None


def _seq(words: Sequence[str], *_: object) -> str | None:
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?[0-9]{1,6}", word) for word in words):
        return None
    first, step, last = 1, 1, int(words[-1])
    if len(words) > 1:
        first = int(words[0])
    if len(words) > 2:
        step = int(words[1]) or 1
    return "".join(f"{number}\n" for number in [*range(first, last + (1 if step > 0 else -1), step)][:_MOST])


def _change_lines(change: Callable[[Sequence[str], list[str]], str | None]) -> Printer:
    """Of a command that changes the lines that it is given."""

    def printed(words: Sequence[str], given: str | None, _: Shell) -> str | None:
        return None if given is None else change(words, given.rstrip("\n").split("\n") if given else [])

    return printed


def _ends(words: Sequence[str], lines: list[str], *, last: bool) -> str | None:
    match = re.fullmatch(r"-(?:n|-lines=)?\s*([0-9]{1,4})", " ".join(words))
    if words and match is None:
        return None
    count = int(match[1]) if match else 10
    return "".join(f"{line}\n" for line in (lines[-count:] if last else lines[:count]))


def _grep(words: Sequence[str], given: str | None, shell: Shell) -> str | None:
    """The lines with a pattern that is read alike by Python; with `-c` their number."""
    flags = "".join(word[1:] for word in words if re.fullmatch("-[A-Za-z]+", word))
    pattern, *files = [word for word in words if not re.fullmatch("-[A-Za-z]+", word)] or [""]
    text = given if not files else shell.read(files[0])
    if text is None or set(flags) - set("cqEiF") or not re.fullmatch(r"(?:[\w :^$./\"'=-]|\\s\*?|\.\*)+", pattern):
        return None
    search = re.compile(pattern, re.IGNORECASE if "i" in flags else 0).search
    lines = [line for line in text.splitlines() if search(line[:1000])]
    return f"{len(lines)}\n" if "c" in flags else "".join(f"{line}\n" for line in lines)


def _wc(words: Sequence[str], lines: list[str]) -> str | None:
    return {"-l": f"{len(lines)}\n", "-w": f"{len(' '.join(lines).split())}\n"}.get(" ".join(words))


def _tr(words: Sequence[str], lines: list[str]) -> str | None:
    text, plain = "\n".join(lines), [word.replace("\\n", "\n") for word in words]
    match plain:
        case ["-dc" | "-cd", "0-9"]:
            return re.sub(r"[^0-9]", "", text)
        case ["-d", dropped]:
            return "".join(character for character in text if character not in dropped)
        case [old, new] if len(old) == len(new) == 1:
            return text.replace(old, new) + "\n"
    return None


def _cut(words: Sequence[str], lines: list[str]) -> str | None:
    match = re.fullmatch(r"-d ?(\S| ) -f ?([0-9]{1,3})", " ".join(words))
    if match is None:
        return None
    parts = [line.split(match[1]) for line in lines]
    return "".join(f"{part[int(match[2]) - 1] if int(match[2]) <= len(part) else ''}\n" for part in parts)


def _awk(words: Sequence[str], lines: list[str]) -> str | None:
    match = re.fullmatch(r"(?:-F ?(\S) )?\{ ?print (NF|NR|\$([0-9]{1,2})) ?\}", " ".join(words))
    if match is None or match[2] == "NR":
        return None
    parts = [line.split(match[1]) for line in lines]
    number = int(match[3] or 0)
    return "".join(f"{len(part) if match[2] == 'NF' else ' '.join(part[number - 1 : number])}\n" for part in parts)


_PRINTERS: Mapping[str, Printer] = {
    "echo": _echo,
    "printf": _printf,
    "scontrol": _scontrol,
    "srun": _srun,
    "hostname": _hostname,
    "getent": lambda words, *_: f"{ADDRESS} node1\n" if words[:1] == ["hosts"] else None,
    "pwd": _pwd,
    "nvidia-smi": _nvidia_smi,
    "python": _python,
    "python3": _python,
    "seq": _seq,
    "whoami": lambda _, __, shell: shell.variables.get("USER"),
    "uuidgen": lambda *_: "1\n",
    "dirname": lambda words, *_: f"{PurePosixPath(words[-1]).parent}\n" if words else None,
    "basename": lambda words, *_: (
        f"{PurePosixPath(words[0]).name.removesuffix(''.join(words[1:2]))}\n" if words else None
    ),
    "realpath": lambda words, *_: f"{words[-1]}\n" if words else None,
    "readlink": lambda words, *_: f"{words[-1]}\n" if words[:1] == ["-f"] else None,
    "cat": lambda words, given, shell: given if not words else shell.read(words[0]),
    "grep": _grep,
    "expr": lambda words, _, shell: None if (value := arithmetic(" ".join(words), shell)) is None else f"{value}\n",
    "which": lambda words, *_: f"{words[-1]}\n" if words else None,
    "command": lambda words, *_: f"{words[1]}\n" if words[:1] == ["-v"] and words[1:] else None,
    "wc": _change_lines(_wc),
    "tr": _change_lines(_tr),
    "cut": _change_lines(_cut),
    "awk": _change_lines(_awk),
    "head": _change_lines(lambda words, lines: _ends(words, lines, last=False)),
    "tail": _change_lines(lambda words, lines: _ends(words, lines, last=True)),
    "sort": _change_lines(lambda _, lines: "".join(f"{line}\n" for line in sorted(lines))),
    "xargs": _change_lines(lambda words, lines: f"{' '.join(' '.join(lines).split())}\n" if not words else None),
}
