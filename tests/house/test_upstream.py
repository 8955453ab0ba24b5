"""What planner relies on inside other packages: one list, true of what is installed, and applied as it says."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner import paper, upstream
from planner.errors import TorchVersionError, TraceError
from planner.paper import compiled
from planner.truth.measuring import rank_recorder
from planner.upstream import __main__ as command
from planner.upstream import checking, table, torch_releases
from planner.upstream.entries import Change, Entry, Kind

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("paper", "roles", "tracing", "training")
INSTALLED = [entry for entry in table.TABLE if checking.find_folder(entry.package) is not None]


def text_of_packages() -> Iterator[tuple[Path, str]]:
    for room in ROOMS:
        for path in sorted((REPOSITORY / "planner" / room).rglob("*.py")):
            yield path.relative_to(REPOSITORY), path.read_text()


def test_nothing_is_patched_beside_the_table() -> None:
    """What is left are variables of the environment."""
    found = [(str(path), line) for path, text in text_of_packages() for line in text.splitlines() if "mock." in line]

    assert [each for each in found if "mock.patch.dict(os.environ" not in each[1]] == []


def test_every_group_is_applied_somewhere() -> None:
    text = "\n".join(text for _, text in text_of_packages())

    assert set(re.findall(r'upstream\.patch_targets\(\s*"([^"]+)"', text)) == {entry.group for entry in table.TABLE} - {
        ""
    }


@pytest.mark.parametrize("entry", table.TABLE, ids=lambda entry: entry.target)
def test_each_entry_says_why_and_names_a_test_that_is_there(entry: Entry) -> None:
    assert entry.why
    assert (REPOSITORY / entry.test).is_file()
    assert bool(entry.group) is (entry.kind is Kind.PATCH)


def test_what_a_measured_program_finds_wrapped_stands_in_the_table() -> None:
    wrapped = {entry.target for entry in table.TABLE if entry.kind is Kind.WRAPPED}

    assert wrapped == {f"{module}:{rank_recorder._RESET}" for module in rank_recorder._RESETTERS}


def test_no_target_is_listed_twice_in_one_way() -> None:
    """A program's patches lie over those of a step."""
    listed = [(entry.target, entry.kind, entry.group) for entry in table.TABLE]

    assert len(listed) == len(set(listed))


def test_what_is_installed_is_as_the_table_knows_it() -> None:
    checking.enforce()

    assert INSTALLED


@pytest.mark.parametrize("package", checking.read_digests())
def test_every_source_was_found_in_some_known_version(package: str) -> None:
    versions = checking.read_digests()[package].values()
    wanted = {entry.target for entry in table.TABLE if entry.package == package and entry.has_source}

    assert {target for digests in versions for target, digest in digests.items() if digest} == wanted


SOURCE = "def first():\n    return 1\n\n\nclass Kept:\n    def _second(self):\n        # a remark\n        return 2\n"


def entry_of(name: str, change: Change = Change.REFUSED, **given: Any) -> Entry:
    return Entry(target=f"torch.somewhere:{name}", kind=Kind.PATCH, why="a test", test="", change=change, **given)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "somewhere.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def known_digests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {entry.target: checking.digest(entry, folder) for entry in (entry_of("first"), entry_of("Kept._second"))}
    monkeypatch.setattr(checking, "read_digests", lambda: {"torch": {"2.4": digests}})


@pytest.mark.usefixtures("known_digests")
@pytest.mark.parametrize("version", ["2.4", "2.5"])
def test_a_source_that_is_the_same_is_accepted_in_any_version(folder: Path, version: str) -> None:
    (folder / "somewhere.py").write_text(SOURCE.replace("a remark", "another remark\n\n"))

    assert checking.compare([entry_of("first"), entry_of("Kept._second")], "torch", version, folder) == []


@pytest.mark.usefixtures("known_digests")
@pytest.mark.parametrize("version", ["2.4", "2.5"])
def test_a_source_that_changed_or_went_is_found(folder: Path, version: str) -> None:
    (folder / "somewhere.py").write_text(SOURCE.replace("return 2", "return 3").replace("first", "last"))

    found = checking.compare([entry_of("first"), entry_of("Kept._second")], "torch", version, folder)

    assert [each.problem for each in found] == ["is not there", "has changed"]
    assert checking.compare([entry_of("first", optional=True)], "torch", "2.5", folder) == []


@pytest.fixture
def another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the check find these entries in a torch that nobody has looked at, in which nothing is as it was."""

    def of(*entries: Entry) -> None:
        monkeypatch.setattr(checking, "table", SimpleNamespace(TABLE=entries))
        digests = {entry.target: "1" for entry in entries}
        monkeypatch.setattr(checking, "read_digests", lambda: {"torch": {"2.4": digests}})
        monkeypatch.setattr(checking, "find_folder", lambda _package: tmp_path)
        monkeypatch.setattr(checking.importlib.metadata, "version", lambda _name: "2.5.0+cpu")
        checking.enforce.cache_clear()

    yield of
    checking.enforce.cache_clear()


def test_a_change_that_could_make_plans_wrong_is_refused_on_entry(another_torch: Any) -> None:
    another_torch(entry_of("first"))

    with pytest.raises(TraceError) as caught, paper.gpu("sm_90"):
        pass

    assert str(caught.value) == (
        "torch 2.5.0+cpu is not as planner knows it, and its plans could be wrong: torch.somewhere.first is not there\n"
        "  allowed: torch 2.4\n"
        "  change:  install one of these versions of torch"
    )


def test_another_inductor_is_refused_by_who_compiles_alone(another_torch: Any) -> None:
    another_torch(entry_of("inductor", part="compiling"))

    with paper.gpu("sm_90"):
        pass
    with pytest.raises(TraceError) as caught, paper.gpu("sm_90"), compiled.enable():
        pass

    assert str(caught.value) == (
        "torch 2.5.0+cpu is not as planner knows it, and its plans could be wrong: torch.somewhere.inductor is not"
        " there\n"
        "  allowed: torch 2.4\n"
        "  change:  install one of these versions of torch"
    )


@pytest.fixture
def another_deepspeed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The installed one is of a version that nobody has looked at, and none of its sources is as it was."""
    digests = dict.fromkeys(checking.read_digests()["deepspeed"]["0.19"], "1")
    others = {**checking.read_digests(), "deepspeed": {"0.1": digests}}
    monkeypatch.setattr(checking, "read_digests", lambda: others)
    checking.enforce.cache_clear()
    yield
    checking.enforce.cache_clear()


@pytest.mark.usefixtures("another_deepspeed")
def test_what_changed_in_another_deepspeed_is_said_by_who_reaches_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("deepspeed")
    with caplog.at_level(logging.WARNING):
        checking.enforce()
        (unknown,) = (record.getMessage() for record in caplog.records)
        caplog.clear()
        checking.enforce("deepspeed")

    assert unknown.startswith("planner knows deepspeed 0.1, not 0.19")
    (changed,) = (record.getMessage() for record in caplog.records)
    assert " is not as planner knows it, and plans may say less: deepspeed.runtime.zero." in changed


def test_no_source_of_a_library_is_compared_before_it_is_reached() -> None:
    assert [
        entry.target for entry in table.TABLE if entry.package != "torch" and entry.has_source and not entry.part
    ] == []


def test_any_other_change_is_one_warning(another_torch: Any, caplog: pytest.LogCaptureFixture) -> None:
    another_torch(*(entry_of(f"name_{number}", Change.REPORTED) for number in range(7)))

    with caplog.at_level(logging.WARNING), paper.gpu("sm_90"), paper.gpu("sm_90"):
        pass

    unknown, changed = (record.getMessage() for record in caplog.records)
    assert unknown == "planner knows torch 2.4, not 2.5"
    assert changed.startswith("torch 2.5 is not as planner knows it, and plans may say less: torch.somewhere.name_0 is")
    assert changed.endswith("and 2 more")


def test_patches_are_those_of_the_table_and_are_taken_back() -> None:
    target = "huggingface_hub.constants:HF_HUB_OFFLINE"
    constants = pytest.importorskip("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE

    with upstream.patch_targets("hub offline", wrapped={target: lambda real: ("instead of", real)}):
        assert ("instead of", before) == constants.HF_HUB_OFFLINE

    assert constants.HF_HUB_OFFLINE is before
    with pytest.raises(ValueError, match="differ from the table"), upstream.patch_targets("hub offline"):
        pass


def test_a_target_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = entry_of("first", group="a group")
    monkeypatch.setattr(table, "TABLE", (gone,))

    with (
        pytest.raises(TraceError, match=r"torch has no torch\.somewhere\.first, which planner replaces: a test"),
        upstream.patch_targets("a group", replaced={gone.target: None}),
    ):
        pass


def test_a_module_that_lacks_something_itself_is_not_called_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "builds_extensions.py").write_text("import no_such_setuptools\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = Entry(target="builds_extensions:load", kind=Kind.PATCH, why="a test", test="", group="another group")
    monkeypatch.setattr(table, "TABLE", (entry,))

    with pytest.raises(TraceError) as caught, upstream.patch_targets("another group", replaced={entry.target: None}):
        pass

    assert str(caught.value) == (
        "builds_extensions cannot be imported, of which planner replaces load (a test): No module named"
        " 'no_such_setuptools'\n"
        "  change:  install what it imports where planner runs"
    )


class _Keeps(torch.autograd.Function):
    """Its node keeps an object of Python alive for as long as its graph lives."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor, kept: Any) -> torch.Tensor:
        context.kept = kept
        return given.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Object:
    pass


def test_when_a_backward_is_settled_the_devices_thread_has_given_up_its_graph() -> None:
    with paper.gpu("sm_90") as gpu:
        leaf = torch.zeros(4, device="cuda", requires_grad=True)
        kept = [_Object() for _ in range(50)]
        alive = []
        for each in kept:
            loss = _Keeps.apply(leaf, each).sum()
            torch.autograd.grad(loss, leaf)
            del loss
            reference = weakref.ref(each)
            kept.remove(each)
            del each
            gpu.recorder.settle()
            alive.append(reference() is not None)
    gc.collect()

    assert not any(alive)


def test_settling_leaves_no_event() -> None:
    with paper.gpu("sm_90") as gpu:
        leaf = torch.zeros(4, device="cuda", requires_grad=True)
        leaf.sum().backward()
        before = gpu.recorder.events()
        gpu.recorder.settle()

        assert gpu.recorder.events() == before


def test_dtypes_have_the_names_that_torch_gives_them() -> None:
    dtypes = (torch.float8_e4m3fn, torch.bfloat16, torch.uint16, torch.complex64, torch.bool)
    with paper.gpu("sm_90") as gpu:
        kept = [torch.empty(8, dtype=dtype, device="cuda") for dtype in dtypes]
        named = [event.origin.dtype for event in gpu.recorder.events() if event.origin]  # type: ignore[union-attr]
    del kept

    assert named == [str(dtype).removeprefix("torch.") for dtype in dtypes]


@pytest.mark.parametrize(
    ("torch_version", "lacking"),
    [
        (
            "2.6.0+cu124",
            [
                "tensor parallelism by transformers' plans",
                "expert parallelism",
                "experts that several ranks hold",
                "frozen parameters of a dtype of their own in fully_shard",
                "Muon",
                "checkpoints saved in the background",
                "pipelines of a program",
            ],
        ),
        ("2.9.1", ["context parallelism over cuDNN's attention", "pipelines of a program"]),
        ("2.13.0+cpu", []),
        ("2.15.0", []),
    ],
)
def test_what_a_version_lacks_is_known_by_name(
    torch_version: str, lacking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_releases.importlib.metadata, "version", lambda _name: torch_version)
    monkeypatch.setattr(torch_releases, "installed", torch_releases.installed.__wrapped__)

    assert [name for name in torch_releases.FEATURES if not torch_releases.has(name)] == lacking


def test_what_is_asked_for_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_releases.importlib.metadata, "version", lambda _name: "2.6.0+cu124")
    monkeypatch.setattr(torch_releases, "installed", torch_releases.installed.__wrapped__)

    with pytest.raises(TorchVersionError) as caught:
        torch_releases.require("Muon", place="train.optimizer.name")

    assert str(caught.value) == (
        "train.optimizer.name: Muon: not with torch 2.6.0+cu124: torch.optim has no such optimizer\n"
        "  allowed: torch 2.9 and newer\n"
        "  change:  plan with one of these, whichever the job runs: software.torch says which"
    )


def test_what_changed_between_two_folders_is_shown_with_its_lines(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / "somewhere.py").write_text(SOURCE.replace("return 2", "return 3"))
    monkeypatch.setattr(command.table, "TABLE", (entry_of("first"), entry_of("Kept._second")))

    assert list(command.changed("torch", str(folder), str(new))) == [
        "changed  torch.somewhere:Kept._second (patch, refused): a test []",
        "    @@ -1,3 +1,3 @@",
        "         def _second(self):",
        "             # a remark",
        "    -        return 2",
        "    +        return 3",
    ]


def test_between_known_versions_the_targets_are_named() -> None:
    lines = list(command.changed("torch", "2.14", "2.15"))

    assert any(line.startswith("gone     torch.distributed.pipelining.stage:PipelineStage._warmup_") for line in lines)
    assert list(command.changed("torch", "2.15", "2.15")) == []
