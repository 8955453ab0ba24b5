"""The table of packages with kernels of their own; who asks for which package, and which ones are missing here."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Literal

from planner.errors import ProgramError
from planner.job.launching.line import LaunchLine
from planner.runtime.own_code import is_programs
from planner.tracing.program.assumptions import program_place
from planner.tracing.program.program_files import find_imports, own_files


@dataclass(frozen=True, slots=True)
class Offered:
    """One module of a stand-in: the module of planner that has its names (empty: a package of other modules)."""

    by: str = ""
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package as pip names it, and its top-level module."""

    name: str
    module: str
    version: str = ""
    """Whose allocations are known."""
    source: str = ""
    """Files of that version."""
    modules: Mapping[str, Offered] = field(default_factory=dict)
    extension: Mapping[str, Offered] = field(default_factory=dict)
    """Compiled modules that Python code of the package imports, where that is installed."""
    compiled: Sequence[str] = ()
    """The same, where nothing stands for them."""
    from_index: Sequence[str] = ()
    """What to install where planner runs (`pip install`), if that needs no GPU."""
    absent: Sequence[str] = ()
    """Modules and names of other releases, which this one has not: an import of them fails as it does there."""
    by_hand: str = ""
    """The same where that takes more than its name."""

    @property
    def instead(self) -> str:
        """What to install, for people; empty where nothing can be."""
        return self.by_hand or " and ".join(self.from_index)

    @property
    def is_modelled(self) -> bool:
        """Whether something stands for it where it is not installed."""
        return bool(self.modules)


def _offered(by: str, **modules: str) -> dict[str, Offered]:
    """Modules, with `__` for dots in their names, and the names that they have from the module `by` of planner."""
    return {
        module.replace("__", "."): Offered(by, names.split()) if names else Offered()
        for module, names in modules.items()
    }


_BUILT = "built for the job's torch, as on the cluster"
_FLASH = (
    "flash_attn_func flash_attn_kvpacked_func flash_attn_qkvpacked_func flash_attn_varlen_func"
    " flash_attn_varlen_kvpacked_func flash_attn_varlen_qkvpacked_func flash_attn_with_kvcache"
)
PACKAGES: tuple[Package, ...] = (
    Package(
        name="flash-attn",
        module="flash_attn",
        version="2.8.4",
        source="csrc/flash_attn/flash_api.cpp, flash_attn/{flash_attn_interface,bert_padding}.py, "
        "flash_attn/layers/rotary.py, flash_attn/ops/triton/{cross_entropy,rotary}.py, flash_attn/losses",
        modules=_offered(
            "planner.paper.outside.flash_attention_2",
            flash_attn=_FLASH,
            flash_attn__flash_attn_interface=f"{_FLASH} _flash_attn_forward _flash_attn_backward"
            " _flash_attn_varlen_forward _flash_attn_varlen_backward",
            flash_attn__bert_padding="index_first_axis index_put_first_axis pad_input unpad_input",
            flash_attn__layers="",
            flash_attn__layers__rotary="apply_rotary_emb apply_rotary_emb_func",
            flash_attn__losses="",
            flash_attn__losses__cross_entropy="CrossEntropyLoss",
            flash_attn__ops="",
            flash_attn__ops__triton="",
            flash_attn__ops__triton__cross_entropy="cross_entropy_loss",
            flash_attn__ops__triton__rotary="apply_rotary",
        ),
        extension=_offered(
            "planner.paper.outside.flash_attention_2",
            flash_attn_2_cuda="fwd varlen_fwd bwd varlen_bwd fwd_kvcache",
        ),
        absent=("flash_attn.cute", "flash_attn.flash_attn_interface.flash_attn_unpadded_func"),
        by_hand="its Python part, with FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE in the environment of pip",
    ),
    Package(
        name="flash-attn-3",
        module="flash_attn_interface",
        version="3.0.0",
        source="hopper/flash_api.cpp, hopper/flash_attn_interface.py at the commit 0251105",
        modules=_offered(
            "planner.paper.outside.flash_attention_3",
            flash_attn_interface="flash_attn_func flash_attn_qkvpacked_func flash_attn_varlen_func"
            " flash_attn_with_kvcache",
        ),
    ),
    Package(
        name="kernels",
        module="kernels",
        version="0.18.2",
        source="src/kernels/load.py",
        modules={"kernels": Offered("planner.tracing.program.packages.kernels", ("get_kernel",))},
        from_index=("kernels",),
    ),
    Package(
        name="transformer-engine",
        module="transformer_engine",
        by_hand="its Python part (pip install --no-deps transformer-engine; and einops, onnx, onnxscript)",
    ),
    Package(
        name="apex",
        module="apex",
        compiled=("amp_C", "fused_layer_norm_cuda", "fused_weight_gradient_mlp_cuda"),
        by_hand=f"apex from github.com/NVIDIA/apex, {_BUILT}",
    ),
    Package(
        name="causal-conv1d",
        module="causal_conv1d",
        compiled=("causal_conv1d_cuda",),
        by_hand=f"causal-conv1d, {_BUILT}",
    ),
    Package(name="mamba-ssm", module="mamba_ssm", compiled=("selective_scan_cuda",), by_hand=f"mamba-ssm, {_BUILT}"),
    *(
        Package(name=name, module=module, from_index=from_index)
        for name, module, *from_index in (
            ("bitsandbytes", "bitsandbytes", "bitsandbytes"),
            ("deep-gemm", "deep_gemm"),
            ("flash-linear-attention", "fla", "flash-linear-attention"),
            ("grouped-gemm", "grouped_gemm"),
            ("liger-kernel", "liger_kernel", "liger-kernel"),
            ("sageattention", "sageattention"),
            ("xformers", "xformers", "xformers"),
        )
    ),
)

BY_MODULE: Mapping[str, Package] = MappingProxyType(
    {module: package for package in PACKAGES for module in (package.module, *package.compiled)}
)


def canonical(name: str) -> str:
    """A name as pip compares names (PEP 503)."""
    return name.strip().lower().replace("_", "-").replace(".", "-")


BY_NAME: Mapping[str, Package] = MappingProxyType({canonical(package.name): package for package in PACKAGES})


_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_MOST_BYTES = 1 << 20


def listed(folders: Iterable[Path]) -> dict[str, str]:
    """Names as pip compares them, each with the file that asks for it (`requirements.txt`)."""
    names: dict[str, str] = {}
    for folder in folders:
        for path in (*sorted(folder.glob("requirements*.txt")), folder / "pyproject.toml"):
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
            except OSError:
                continue
            for line in text.splitlines() if path.suffix == ".txt" else _project_dependencies(text):
                if (name := _NAME.match(line)) is not None:
                    names.setdefault(canonical(name[1]), path.name)
    return names


def _project_dependencies(text: str) -> list[str]:
    """Dependencies, optional ones too: a project that lists them is assumed to have them on its machines."""
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError:
        return []
    if not isinstance(project, dict):
        return []
    optional = project.get("optional-dependencies", {})
    groups = [project.get("dependencies", []), *(optional.values() if isinstance(optional, dict) else ())]
    return [str(dependency) for group in groups if isinstance(group, list) for dependency in group]


_MISSING = frozenset({"ImportError", "ModuleNotFoundError"})
NOT_BUILT = frozenset({"RuntimeError", "ImportError", "OSError"})
"""Errors of a build of an extension that did not succeed (torch 2.13, utils/cpp_extension.py)."""
_EVERYTHING = frozenset({"Exception", "BaseException"})
_OURS = str(Path(__file__).parents[3])


def frames() -> list[FrameType]:
    """Those of the code that imports, innermost first: neither the import system's nor planner's."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return [
        frame
        for frame in frames
        if not (path := frame.f_code.co_filename).startswith(("<", _OURS)) and "/importlib/" not in path
    ]


Way = Literal["statement", "by name", "asked"]
"""How a module is asked for: `by name` by importlib.import_module, `asked` only whether it is there (find_spec)."""


def way() -> Way:
    """How the module is asked for that the import system looks for now."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        path = frame.f_code.co_filename
        if not path.startswith(_OURS) and "importlib" not in path:
            break
        if "importlib.util" in path or path.endswith("importlib/util.py"):
            return "asked"
        if frame.f_code.co_name == "import_module":
            return "by name"
    return "statement"


def is_guarded(importing: list[FrameType], errors: frozenset[str] = _MISSING) -> bool:
    """Whether an error of the import, or of a build that raises such `errors`, is caught: at its line by any handler
    that takes it, around the code that led there by one that names it."""
    return any(
        is_caught(frame.f_code.co_filename, frame.f_lineno, is_import=number == 0, errors=errors)
        for number, frame in enumerate(importing)
    )


def is_caught(path: str, line: int, *, is_import: bool = True, errors: frozenset[str] = _MISSING) -> bool:
    """Whether an error of an import, at this line or in what it calls, is caught there."""
    wanted = errors | (_EVERYTHING if is_import else frozenset())
    return any(
        begin <= line <= end and (names & wanted or (is_import and not names)) for begin, end, names in _tries(path)
    )


def program_line(error: BaseException) -> str:
    """The innermost line of the program in the traceback of an error (`train.py:12`); empty if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_programs(frame.f_code)]
    return program_place(frames[::-1])


def runs_package(frame: FrameType, package: str) -> bool:
    """Whether the frame runs a module of this top-level package."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == package


@cache
def _tries(path: str) -> tuple[tuple[int, int, frozenset[str]], ...]:
    """Of every handler of a file: the lines of its `try`, and the names of errors that it takes; none takes all."""

    def names(error: ast.expr | None) -> Iterator[str]:
        for node in ast.walk(error) if error is not None else ():
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr

    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno, frozenset(names(handler.type)))
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for handler in node.handlers
    )


_NAMED = re.compile(r"requires the (\w[\w.-]*) (?:library|package)")
"""As transformers 5.23 says it (utils/import_utils.py)."""
_NAMES = {
    "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "faiss": "faiss-cpu", "git": "gitpython", "hydra": "hydra-core", "jwt": "pyjwt",
    "lightning_fabric": "lightning-fabric", "magic": "python-magic", "pil": "pillow", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "umap": "umap-learn", "usb": "pyusb", "yaml": "pyyaml",
}  # fmt: skip
"""Packages that are called otherwise than their modules."""


def error_of(
    error: Exception, line: LaunchLine, own: Collection[str], listed: Mapping[str, str], folders: Collection[Path]
) -> ProgramError | None:
    """The error for a program that ends for want of a package; None for one that ends for another reason.

    `own` are modules that a user has described, `listed` packages of the program's requirements, `folders` the
    program's and the one where it starts. What is to be installed is what the error asks for alone, and never what has
    the name of a module of the program's repository: on an index that name is anybody's.
    """
    name = _lacking(error, own)
    if not name:
        return None
    if (found := _place_in_repository(name, folders)) is not None:
        return ProgramError(
            f"the program imports {name}, which lies in its repository and is not on Python's path here",
            allowed="modules that Python finds here as on the cluster",
            remedy=f"install the repository where planner runs, as on the cluster, or set PYTHONPATH={found.parent}",
            place=program_line(error),
        )
    needed = _packages([name], listed)
    others = [package for package in _packages(_imported(line, own, folders), listed) if package not in needed]
    remedies = [f"pip install {' '.join(needed)}"]
    remedies += [f"its files also import {', '.join(others)}, not installed here either"] if others else []
    verb = "is" if len(needed) == 1 else "are"
    return ProgramError(
        f"the program needs {', '.join(needed)}, which {verb} not installed where planner runs",
        allowed="packages that are installed here as on the cluster; none of them needs a GPU to be installed",
        remedy="; ".join(remedies),
        place=program_line(error),
    )


_ROOT_HAS = (".git", "pyproject.toml", "setup.cfg", "setup.py")
_PYTHON_AT = ("*.py", "*/*.py")
"""In a folder that can be imported; others have names too (configs/yaml)."""


def _place_in_repository(name: str, folders: Iterable[Path]) -> Path | None:
    """The program's own file or folder of this name: in these folders or the repository around them, up to two folders
    deep (third_party/Megatron-LM/megatron)."""
    for folder in folders:
        around = (folder, *folder.parents)
        root = next((each for each in around if any((each / mark).exists() for mark in _ROOT_HAS)), folder)
        for place in (folder, root):
            for above in ("", "*/", "*/*/"):
                for path in (*place.glob(f"{above}{name}"), *place.glob(f"{above}{name}.py")):
                    if path.suffix == ".py" or any(next(path.glob(python), None) for python in _PYTHON_AT):
                        return path
    return None


def _lacking(error: BaseException | None, own: Collection[str]) -> str:
    """The top-level module that an error is about; empty for another error, and where it is there."""
    passed: set[int] = set()
    while error is not None and id(error) not in passed:
        passed.add(id(error))
        if isinstance(error, ModuleNotFoundError) and error.name:
            top = error.name.partition(".")[0]
            if _is_missing(top, own):
                return top
        if isinstance(error, ImportError) and (named := _NAMED.search(str(error))):
            return named[1].lower() if _is_missing(named[1].lower(), own) else ""
        # Inductor's errors have what they are about in them (torch 2.13, _inductor/exc.py).
        error = getattr(error, "inner_exception", None) or error.__cause__
    return ""


def _imported(line: LaunchLine, own: Collection[str], folders: Collection[Path]) -> Iterator[str]:
    """Modules that are not there and that it imports whenever it starts, but its own."""
    files = own_files(line, surely=True)
    modules = dict.fromkeys(
        statement.module.partition(".")[0]
        for tree in files.values()
        for statement in find_imports(tree)
        if not statement.deferred
    )
    for name in modules:
        known = BY_MODULE.get(name)
        stands = known is not None and known.is_modelled
        if not stands and _is_missing(name, own) and _place_in_repository(name, folders) is None:
            yield name


def _is_missing(name: str, own: Collection[str]) -> bool:
    if not name or name in sys.stdlib_module_names or name in sys.modules or name in own:
        return False
    finders = (finder for finder in sys.meta_path if not str(getattr(finder, "__module__", "")).startswith("planner."))
    return all(finder.find_spec(name, None) is None for finder in finders)


def _packages(modules: Iterable[str], listed: Mapping[str, str]) -> list[str]:
    packages: dict[str, None] = {}
    for module in modules:
        name = canonical(module)
        if (known := BY_MODULE.get(module)) is not None:
            packages |= dict.fromkeys(known.from_index or (known.name,))
        else:
            packages[name if name in listed else _NAMES.get(module.lower(), name)] = None
    return list(packages)
