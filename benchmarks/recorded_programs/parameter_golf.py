"""Runs of openai/parameter-golf as their logs recorded them: what ran, on what, with which settings, and its peaks.

The table of the runs is PLANNER_TRUTH/rows-3/parameter_golf_memory.csv; scripts and logs come out of a copy of the
repository with the heads of its pull requests (CHECKOUTS/parameter-golf). Each runs with the settings that its log
prints or its page assigns. Data needs sentencepiece, as the programs do.
"""

from __future__ import annotations

import ast
import base64
import functools
import itertools
import lzma
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from recorded_run import TRUTH, FamilyOfTable, Launch, NotPublishedError, RecordedRun, Repository, call_by, write_tokens

from planner.hardware import catalog

ROWS = TRUTH / "rows-3" / "parameter_golf_memory.csv"
_RULER = re.compile(r"^={79,}$", re.MULTILINE)
_TORCH = re.compile(r"(?:[Pp]y[Tt]orch|torch)\W{0,3}(?:version)?[\s:=v]*\"?(2\.\d+)\.\d+")
_SMI = re.compile(r"\|\s+\d+\s+(NVIDIA [\w \-]+?)\s+(?:On|Off|WDDM|TCC)\s[^\n]*\n[^\n]*?/\s*(\d+)MiB")
_PAIR = re.compile(r"\b([a-zA-Z][a-zA-Z0-9_]*)\s*[:=]\s*([^\s:=]+)")
_ASSIGNED = re.compile(
    r"""\b([A-Z][A-Z0-9_]{2,})["']?\s*=\s*(?:"([^"\s]*)"|'([^'\s]*)'|([\w.-][\w.,:=+*-]*)(?![\w/\\]))"""
)
_SHELL_DEFAULT = re.compile(r"\$\{\w+:-([^}\s]*)\}")
_NUMERIC = re.compile(r"""(?:int|float)\(\s*(?:os\.)?(?:environ\.get|getenv)\(\s*["']([A-Z][A-Z0-9_]{2,})["']""")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
_PROCESS = re.compile(r"^\|\s+\d+\s+N/A\s+N/A\s+\d+\s+C(?:\+G)?\s+(\S*python\S*)", re.MULTILINE)
_EVALUATES_ONLY = re.compile(r"^(?:eval_only\w*[:=]\s*(?:<|/|loading)|\w+=1\b.* skipping training)", re.MULTILINE)
_PARAMETERS = re.compile(r"^model_params[:=]\s*(\d[\d,_]*)", re.MULTILINE)
_SAID_TORCH = re.compile(r"(?:[Pp]y[Tt]orch|torch)(?:[ _][Vv]ersion)?[\s\"'`*:=(|]{0,6}v?(2\.\d+)(?:\.\d+)?\b")
_SAID_GPUS = re.compile(r"\b(\d+)\s?[x×]\s?(?:NVIDIA )?((?:RTX ?)?[A-Z]{0,2}\d{2,4}(?: Ti)?)\b")
_FIRST_STEP = re.compile(r"^\s*(?:step[: ]\s*\d|warmup_step:\s*\d)", re.MULTILINE)
_TAKEN = re.compile(r"""(?:^\s*(?:self\.)?(\w+)\s*(?::[^=\n]+)?=[^\n]*?)?["']([A-Z][A-Z0-9_]{2,})["']""", re.MULTILINE)
_ATTENTION = re.compile(r"^( *)from flash_attn\w* import (?:\w+ as )?(\w+)", re.MULTILINE)
_WARMS_RATES = re.compile(r"\bstep < \w+\.warmup_steps\b")
_WARMS_UP_BEFORE = re.compile(r"\brange\([^()\n]*warmup_steps")
_CLOCK_MAY_BE_OFF = re.compile(r"max_wallclock_seconds\s*>\s*0(?:\.0)?\s*else None")
_NOT_OURS = {
    "WARMUP_STEPS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "RUN_ID",
    "SEED",
    "OMP_NUM_THREADS",
    "DATA_DIR",
    "LOGFILE",
}
"""What launchers set, and what says where something lies."""
_PLACES = ("_PATH", "_DIR", "_FILES", "_ID")
_PAGES = ("README.md", "submission.json", "requirements.txt")
_GPUS_OF_TRACK = {"track_10min_16mb": ("8", "H100")}
"""What the repository's own page asks of the runs in a folder."""
_SHORT_NAMES = {"H100": "H100-SXM-80GB", "A100": "A100-SXM-80GB"}
"""What pages mean by them: nodes of eight, and planner's own short forms."""
_ARCHITECTURES = {
    "NVIDIA GeForce RTX 3060": "sm_86", "NVIDIA RTX A6000": "sm_86", "NVIDIA GeForce RTX 4060 Ti": "sm_89",
    "NVIDIA GeForce RTX 4070": "sm_89", "NVIDIA GeForce RTX 4080": "sm_89", "NVIDIA GeForce RTX 5060 Ti": "sm_120",
    "NVIDIA GeForce RTX 5080": "sm_120",
}  # fmt: skip
"""Of GPUs that the catalog has not: a run needs their memory, which nvidia-smi said, and this."""
OLDEST_TORCH = (2, 6)
_USUAL_WARMUP = 20
_WARMUP_STEPS, _STEPS_AFTER_WARMUP = 3, 4
"""Warm-up steps do all the same, mostly 20 of them. The first step after them comes after an evaluation."""
_SHORT_TRAINING = 8
"""Steps of a whole training that is shortened."""
_SHORTEST_WARMDOWN = 12
"""Rates go to the twelfth part in its last step: below a tenth or more scripts quantize or average weights."""
_OF_SCHEDULE = re.compile(r"WARMDOWN_ITERS|SWA_EVERY|LAWA_FREQ|\w+_WARMUP_STEPS|\w+_(?:START|END|AT)_STEP")
_DEFAULT = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["'],\s*["']?(\d+)\b""")
_NUMBER_DEFAULT = re.compile(r"""["']([A-Z][A-Z0-9_]{2,})["'],\s*["']?(-?\d[\d_.]*(?:e-?\d+)?)["']?\)""")
_LAYERS = re.compile(r"(?:_|^)(\d+)L(?=_|$)")
_STEP = re.compile(r"^\s*(?:step[: ]\s*(\d+)\b|(\d+)/\d+\s)", re.MULTILINE)
_TRAIN_TOKENS, _VALIDATION_TOKENS = 4_000_000, 2_097_152
"""Fewer than there were: what is read stays on the host, but for a batch."""
_WORDS, _LETTERS = 40_000, "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(RecordedRun):
    """One run: where its script and its log are."""

    commit: str
    script: str
    """Empty where only the log has it."""
    folder: str
    log: str


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: the script's text, the files beside it, and what its log says that it was given."""

    code: str
    beside: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    vocabulary: int = 1024
    warmup_steps: int = 0
    is_launched: bool = True
    """By torchrun, which makes a group of ranks even where there is one; else by Python."""
    has_flash_attention: bool = True
    schedule: dict[str, str] = field(default_factory=dict)
    """With which its whole training takes few steps; empty where it cannot be shortened."""


class ParameterGolf(FamilyOfTable[Row, Program]):
    """All rows that printed one figure, in the order of the table."""

    name = "parameter-golf"
    table = ROWS

    def read_runs(self) -> list[Row]:
        rows = [(number, row) for number, row in self.read_rows() if row["values"] == "1"]
        logs = list(self.repository.read_blobs([row["blob"] for _, row in rows]))
        folders = [f"{row['commit']}:{_folder_of(row)}" for _, row in rows]
        named = [self.repository.read_blobs([f"{folder}/{name}" for folder in folders]) for name in _PAGES]
        pages = ["\n".join(texts) for texts in zip(*named, strict=True)]
        beside: dict[tuple[str, str], set[str]] = defaultdict(set)
        for (_, row), log in zip(rows, logs, strict=True):
            beside[row["commit"], _folder_of(row)].update(filter(None, [_find_torch(row["torch"], log)]))
        return [
            _read_row(number, row, log, page, beside[row["commit"], _folder_of(row)])
            for (number, row), log, page in zip(rows, logs, pages, strict=True)
        ]

    def read_program(self, run: Row) -> Program:
        return read_program(run, self.repository)

    def read_other_program(self, run: Row, program: Program) -> Program | None:
        """With the defaults of the script beside the log, of which the log shows an earlier one, and the layers of its
        title (`11L`)."""
        code, steps = unpack(program.code), count_steps(self.repository.read_blob(run.log).replace(program.code, ""))
        script = unpack(self.repository.read_text(run.commit, run.script)) if run.script else ""
        more = read_other_settings(code, script, run.title, program.settings)
        if not more:
            return None
        settings = program.settings | more
        return replace(program, settings=settings, schedule=shorten_training(code, settings, steps))

    def read_written(self, run: Row, folder: Path, python: str) -> dict[str, int]:  # noqa: ARG002
        """How many parameters the model has, as the program's own log says."""
        log = _log_of(folder, run)
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return {"parameters": _read_parameters(text)}

    def write(self, run: Row, program: Program, folder: Path, python: str) -> Launch:
        data, places = write_data(folder, program.vocabulary, python)
        own = folder / "programs" / run.name
        own.mkdir(parents=True, exist_ok=True)
        script = PurePosixPath(run.script or "train_gpt.py").name
        for name, text in {**program.beside, script: program.code}.items():
            (own / name).write_text(text, encoding="utf-8")
        (own / "logs").mkdir(exist_ok=True)
        _log_of(folder, run).unlink(missing_ok=True)
        (own / "data").unlink(missing_ok=True)
        (own / "data").symlink_to(data)
        warmup_steps = min(program.warmup_steps, _WARMUP_STEPS)
        own_settings = {"WARMUP_STEPS": str(warmup_steps), "RUN_ID": run.name}
        launched = ["torchrun", "--standalone", f"--nproc_per_node={run.ranks}"] if program.is_launched else ["python"]
        return Launch(
            folder=own,
            command=[*launched, script],
            steps=warmup_steps + int(program.schedule.get("ITERATIONS", _STEPS_AFTER_WARMUP)),
            options=[
                "--allow-writes",
                *(["--with", "flash-attn,flash-attn-3"] if program.has_flash_attention else []),
                *(["--until-read"] if program.schedule else []),
            ],
            environment=program.settings | places | program.schedule | own_settings,
        )


def write_tokenizer(file: str, vocabulary: str) -> None:
    """A tokenizer of so many tokens, made of random words: pairs of bytes, with all bytes as a last resort."""
    import sentencepiece

    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(1)
    text = path.with_suffix(".txt")
    words = ["".join(drawn.choices(_LETTERS, k=drawn.randint(2, 9))) for _ in range(_WORDS)]
    text.write_text("\n".join(" ".join(words[i : i + 10]) for i in range(0, _WORDS, 10)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=int(vocabulary), model_type="bpe",
        byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    text.unlink()


def write_data(folder: Path, vocabulary: int, python: str) -> tuple[Path, dict[str, str]]:
    """A folder `data` for programs of a vocabulary, and the settings that say where in it what lies."""
    data = folder / f"data-{vocabulary}"
    shards = data / "datasets" / f"fineweb10B_sp{vocabulary}"
    shards.mkdir(parents=True, exist_ok=True)
    train = folder / f"train-{vocabulary}.bin"
    if not train.exists():
        write_tokens(train, _TRAIN_TOKENS, vocabulary - 1)
    for number in range(2):
        if not (shards / f"fineweb_train_{number:06}.bin").exists():
            (shards / f"fineweb_train_{number:06}.bin").hardlink_to(train)
    if not (shards / "fineweb_val_000000.bin").exists():
        write_tokens(shards / "fineweb_val_000000.bin", _VALIDATION_TOKENS + 1, vocabulary - 1)
    tokenizer = folder / "tokenizers" / f"fineweb_{vocabulary}_bpe.model"
    if not tokenizer.exists():
        call_by(python, write_tokenizer, tokenizer, vocabulary)
    if not (data / "tokenizers").exists():
        (data / "tokenizers").symlink_to(tokenizer.parent)
    return data, {
        "DATA_DIR": "./data/", "DATA_PATH": f"./data/datasets/{shards.name}",
        "TOKENIZER_PATH": f"./data/tokenizers/{tokenizer.name}",
    }  # fmt: skip


def _folder_of(row: dict[str, str]) -> str:
    return str(PurePosixPath(row["script"] or row["path"]).parent)


def _read_row(number: int, row: dict[str, str], log: str, page: str, torches_beside: Set[str]) -> Row:
    torch, (product, gpu), world = _find_torch(row["torch"], log), _find_gpu(log, row["gpu"]), row["world"]
    said = {"script": row["script"], "torch": torch, "GPU": gpu, "number of ranks": world}
    gpus = set(_SAID_GPUS.findall(page))
    world = world or read_only({ranks for ranks, _ in gpus})
    torch = torch or read_only(torches_beside) or read_only(set(_SAID_TORCH.findall(page)))
    if not product:
        of_track = {said for track, said in _GPUS_OF_TRACK.items() if track in row["path"]}
        only = read_only({name for ranks, name in gpus or of_track if ranks == world})
        product, gpu = _find_gpu("", _SHORT_NAMES.get(only, only))
    missing = [name for name, text in said.items() if not text]
    return Row(
        name=str(number),
        title=PurePosixPath(_folder_of(row)).name,
        commit=row["commit"],
        script=row["script"],
        folder=_folder_of(row),
        log=row["blob"],
        torch=torch,
        gpu=gpu,
        product=product.removeprefix("NVIDIA "),
        ranks=int(world or 0),
        allocated=(int(row["alloc"]),) * 2,
        reserved=(int(row["res"]),) * 2,
        parameters=_read_parameters(log),
        step_seconds=float(row.get("step_avg") or 0) / 1000,
        obstacle=find_obstacle(row["script"] or _find_code(log), torch, gpu, int(world or 0), count_scripts(log)),
        inferred=f"only what lies beside its log, or the log alone, has its {', '.join(missing)}" if missing else "",
    )


def _log_of(folder: Path, run: Row) -> Path:
    """Where most programs write what they print, named for RUN_ID."""
    return folder / "programs" / run.name / "logs" / f"{run.name}.txt"


def _read_parameters(log: str) -> int:
    printed = _PARAMETERS.search(log)
    return int(re.sub(r"\D", "", printed[1])) if printed else 0


def _find_torch(column: str, log: str) -> str:
    version = _TORCH.match(f"torch {column}") or _TORCH.search(log)
    return version.group(1) if version else ""


def read_only(values: Set[str]) -> str:
    """The one that there is; empty where there are several, or none."""
    return next(iter(values)) if len(values) == 1 else ""


def count_scripts(log: str) -> int:
    """How often a log shows the script, as each run does that writes into it."""
    return sum("import torch" in part for part in _RULER.split(log))


def find_obstacle(script: str, torch: str, gpu: str, ranks: int, runs: int = 1) -> str:
    """What is not known that a run needs, or a torch that planner does not know; empty if there is nothing.

    `runs` are those of one log: its peak is the last one's, and nothing says which of its scripts and settings are.
    """
    if runs > 1:
        return f"its log holds {runs} runs"
    if not script:
        return "its script is not known"
    if not torch or not ranks:
        return f"nothing says its {'number of ranks' if torch else 'torch'}"
    if tuple(map(int, torch.split("."))) < OLDEST_TORCH:
        return f"torch {torch} is older than planner knows"
    return "" if gpu else "its GPU is not known"


def _find_gpu(log: str, column: str) -> tuple[str, str]:
    """Its product, and what `--gpu` takes for it."""
    shown = _SMI.search(log)
    product = shown.group(1) if shown else re.sub(r"\s+(On|Off|WDDM|capability)$", "", column.strip())
    known = catalog.by_any_name(product) if product else []
    if len(known) == 1:
        return product, known[0].name
    if shown and product in _ARCHITECTURES:
        return product, f"{{total_bytes: {shown.group(2)}MiB, arch: {_ARCHITECTURES[product]}}}"
    return product, ""


def _find_code(log: str) -> str:
    """The script, where a log begins with it."""
    return next((part for part in _RULER.split(log) if "import torch" in part and _compiles(part)), "")


def read_program(row: Row, repository: Repository) -> Program:
    """What ran: the code that the log shows, or else the script at the commit; settings as the log says them."""
    log = repository.read_blob(row.log)
    script = repository.read_text(row.commit, row.script) if row.script else ""
    shown = _find_code(log)
    text = log.replace(shown, "") if shown else log
    if _EVALUATES_ONLY.search(text):
        raise NotPublishedError("it evaluates weights that are not published, and does not train")
    head = _FIRST_STEP.split(text, maxsplit=1)[0]
    readme = repository.read_text(row.commit, f"{row.folder}/README.md")
    code = shown or unpack(script)
    beside = repository.read_beside(row.commit, row.folder, (".py", ".json"))
    # A script may only start a module that lies beside it, which then reads the settings.
    started = [beside.get(f"{name}.py", "") for name in re.findall(r"^from (\w+) import", code, re.MULTILINE)]
    code = "\n".join((code, *started))
    launchers = repository.read_beside(row.commit, row.folder, (".sh",)).values()
    settings = read_launchers(code, launchers) | read_command(code, readme) | read_settings(code, head)
    pairs = {name.lower(): value for name, value in _PAIR.findall(head)}
    named = re.search(r"(?:fineweb_|sp)(\d{4,5})\b|bpe_v(\d{4,5})", f"{pairs.get('tokenizer_path', '')} {head}")
    default = re.search(r"""["']VOCAB_SIZE["'],\s*["']?(\d+)""", code)
    vocabularies = [settings.get("VOCAB_SIZE"), pairs.get("vocab_size"), *(named.groups() if named else ()),
                    default and default[1], "1024"]  # fmt: skip
    return Program(
        code=shown or script,
        beside=beside,
        settings=settings,
        vocabulary=next(int(number) for text in vocabularies if (number := _number(text or ""))),
        warmup_steps=count_warmup_steps(code, pairs.get("warmup_steps", "")),
        is_launched=row.ranks > 1 or not is_started_by_python(text, readme),
        # Version 3 is for Hopper alone; without it some scripts take another way, which their logs say.
        has_flash_attention="fa3=False" not in log and (" H" in f" {row.product}" or needs_flash_attention(code)),
        schedule=shorten_training(code, settings, count_steps(text)),
    )


def count_warmup_steps(code: str, printed: str) -> int:
    """Those before the training; none where only rates grow over its own first: it ends, and prints its peak, before as
    many more."""
    if _WARMS_RATES.search(code) and not _WARMS_UP_BEFORE.search(code):
        return 0
    number = _number(printed)  # of a log that shows its script the last one may be an expression
    return _USUAL_WARMUP if number is None else int(number)


def count_steps(text: str) -> int:
    """The last that a log prints."""
    return max((int(step or bare) for step, bare in _STEP.findall(text)), default=0)


def read_other_settings(code: str, script: str, title: str, settings: Mapping[str, str]) -> dict[str, str]:
    """What was perhaps set where nothing is said: what other defaults of a later script are, and a title's layers."""
    here = dict(_NUMBER_DEFAULT.findall(code))
    other = {name: value for name, value in _NUMBER_DEFAULT.findall(script) if here.get(name, value) != value}
    if "NUM_LAYERS" in here and (layers := read_only(set(_LAYERS.findall(title)))):
        other["NUM_LAYERS"] = layers
    return {name: other[name] for name in other if name not in _NOT_OURS and name not in settings}


def needs_flash_attention(code: str) -> bool:
    """Whether a script has no other way: it imports it whatever happens, or calls the name without asking for None."""
    return any(
        not indent or (f"{name} = None" in code and not re.search(rf"\b{name} is |\bif [^\n]*\b{name}\b", code))
        for indent, name in _ATTENTION.findall(code)
    )


def shorten_training(code: str, settings: Mapping[str, str], steps: int) -> dict[str, str]:
    """Settings with which a training of so many steps takes few and comes by all that its schedule has, by its steps
    instead of the clock; empty for a script that does not end by its own, or by steps, or prints no peak then."""
    values = dict(_DEFAULT.findall(code)) | dict(settings)
    if not {"ITERATIONS", "MAX_WALLCLOCK_SECONDS"} <= {variable for _, variable in _TAKEN.findall(code)} or not steps:
        return {}
    if not _CLOCK_MAY_BE_OFF.search(code) or "max_memory_allocated" not in code:
        return {}
    short = min(steps, _SHORT_TRAINING)
    scaled = {
        name: str(max(1, round(int(value) * short / steps)))
        for name, value in values.items()
        if _OF_SCHEDULE.fullmatch(name) and value.isdigit() and int(value)
    }
    if "WARMDOWN_ITERS" in scaled:
        scaled["WARMDOWN_ITERS"] = str(max(int(scaled["WARMDOWN_ITERS"]), _SHORTEST_WARMDOWN))
    return scaled | {"ITERATIONS": str(short), "MAX_WALLCLOCK_SECONDS": "0"}


def is_started_by_python(log: str, readme: str) -> bool:
    """Whether a script of one rank is; the repository's own page says torchrun, most others do not say.

    torchrun starts its ranks by the whole path of its interpreter, which nvidia-smi shows, a shell as it was typed.
    """
    if any("/" not in name and "\\" not in name for name in _PROCESS.findall(log)):
        return True
    return "torchrun" not in readme and re.search(r"\bpython3? (?:-u )?\S*train_gpt\w*\.py", readme) is not None


def _compiles(text: str) -> bool:
    try:
        compile(text.strip("\n"), "shown", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _read_raw(data: bytes) -> bytes:
    return lzma.decompress(data, format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2}])


def _find_packed(script: str) -> Iterator[str]:
    """The texts that it decodes, which may be written in parts."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "b85decode":
            values = (given.value for given in node.args if isinstance(given, ast.Constant))
            yield from (value for value in values if isinstance(value, str))


@functools.cache
def unpack(script: str) -> str:
    """The source of a script that unpacks itself, else the script."""
    for packed in _find_packed(script):
        raw = base64.b85decode(packed)
        for read in (_read_raw, lzma.decompress, zlib.decompress):
            try:
                return read(raw).decode("utf-8")
            except (lzma.LZMAError, zlib.error, UnicodeDecodeError):
                continue
    return script


def read_settings(code: str, head: str) -> dict[str, str]:
    """What the environment has to say so that the script has the settings that its log prints before its first step.

    Names of variables in the script, or of what it keeps them as, stand in logs as `name:value`, `name=value`.
    """
    pairs = {name.lower(): value.rstrip(",;)") for name, value in _PAIR.findall(head)}
    settings = {}
    for kept_as, variable in _TAKEN.findall(code):
        value = pairs.get(variable.lower(), pairs.get(kept_as.lower(), "") if kept_as else "")
        if variable in _NOT_OURS or "/" in value or not value:
            continue
        if value in {"True", "False"}:
            settings[variable] = str(int(value == "True"))
        elif (number := _number(value)) is not None:
            settings[variable] = str(int(number)) if number == int(number) and "e" not in value else value
    return settings


def read_command(code: str, page: str) -> dict[str, str]:
    """What the page beside the script assigns to variables that it reads, each the first time: of models that are not
    as the script's defaults a log prints only some sizes."""
    read = {variable for _, variable in _TAKEN.findall(code)} - _NOT_OURS
    numeric = set(_NUMERIC.findall(code))
    settings: dict[str, str] = {}
    for variable, *quoted, bare in _ASSIGNED.findall(_SHELL_DEFAULT.sub(r"\1", page)):
        value = next(filter(None, quoted), bare.rstrip(".,:"))
        if variable not in read or variable.endswith(_PLACES) or _THOUSANDS.fullmatch(value) or not value:
            continue
        if "$" not in value and (variable not in numeric or _number(value) is not None):
            settings.setdefault(variable, value)
    return settings


def read_launchers(code: str, launchers: Iterable[str]) -> dict[str, str]:
    """What shell scripts beside it assign, as far as they agree."""
    assigned = [read_command(code, launcher) for launcher in launchers]
    values = {
        name: {settings[name] for settings in assigned if name in settings} for name in itertools.chain(*assigned)
    }
    return {name: value for name in values if (value := read_only(values[name]))}


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", "")) if text[:1].isdigit() or text[:1] in "-." else None
    except ValueError:
        return None
