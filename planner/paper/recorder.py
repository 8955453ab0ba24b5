"""What the paper GPU wrote down, as events: every block with its origin, its roles, and the marks of the phases."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from planner.events import TIMING, Category, Event, Keep, Mark, Phase, Repeat, Role
from planner.paper import library, native_records, work_records
from planner.paper.native_records import (
    ALLOC,
    FREE,
    RECORD,
    USE,
    DoesNotFoldError,
    Fold,
    LeftOut,
    Origins,
    Records,
    find_folds,
    fold_left_out,
    make_event,
    renumber,
)
from planner.paper.work_records import Holding
from planner.step_work import Launch, LaunchKind, StepWork

_HOST_WAITS = (LaunchKind.HOST_WAIT, LaunchKind.HOST_WAIT_EVENT)
_FLOAT_SIZES = (2, 4, 8)
"""Bytes of a number in a batch."""
_WORKSPACES = tuple(
    f"{owner}::workspace" for owner in ("cublas", "cudnn", "cudnn_convolution", "cufft", "cusolver", "cutlass")
)
"""As native/gemms.cpp, native/convolution.cpp and the kernels name those who ask for them."""


class Stretch(NamedTuple):
    """Records and launches, each from the first to before another one."""

    first: int
    first_launch: int
    after: int
    after_launch: int


class Births(NamedTuple):
    """Blocks in the order in which they are allocated, and of each its bytes and its stream."""

    blocks: Sequence[int] = ()
    kinds: tuple[tuple[int, int], ...] = ()


class HostListener(Protocol):
    """Writes down what lies on the host."""

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        """This tensor, if it lies on the host, belongs to `category`."""


class Recorder:
    """Listens while a program runs on the paper GPU; a `planner.roles.recording.RoleRecorder`.

    Positions are counts of native records: whatever Python adds (marks, roles) is placed between two of them.
    """

    block_of = staticmethod(native_records.block_of)
    operator_of = staticmethod(native_records.operator_of)

    def __init__(self, *, holding: Holding = Holding.KEEPS) -> None:
        self.waits = False
        """Whether an event that is asked is not done, so that the program has to wait (planner.paper.device)."""
        self._holding = holding
        """What process groups do with the tensors of collectives."""
        self._native = library.load()
        self._placed: dict[int, list[Mark | Role]] = defaultdict(list)
        self._groups: dict[dist.ProcessGroup, work_records.RankGroup] = {}
        """Process groups over which collectives were issued."""
        self._born_as: dict[int, Role] = {}
        self._category: dict[int, Category] = {}
        self._guessed: set[int] = set()
        """Blocks whose category follows from where they are allocated, until something is said of them."""
        self._scopes: dict[str, int] = {"": 0}
        self._paths = [""]
        """Of scopes, by their numbers."""
        self._open: list[int] = []
        self._hindsight: dict[int, Mark] = {}
        self._timing = self._native.paper_name_index(TIMING.replace(".", "::").encode())
        self._timed_blocks: set[int] = set()
        """Of Inductor's timing, which a run with a filled cache does not have."""
        self.host: HostListener | None = None
        """Hears of tensors on the host, of which the device knows nothing."""

    def start(self) -> None:
        self._native.paper_start()

    def stop(self) -> None:
        self._native.paper_stop()

    def mark_at(self, position: int, phase: Phase, iteration: int) -> None:
        """A phase began at this moment (`now`): of a program one knows its iterations when they are over."""
        self._placed[position].insert(0, Mark(phase, iteration))
        self._hindsight.setdefault(position, Mark(phase, iteration))

    def plain_events(self, since: int) -> list[Event]:
        """What the allocator was told since then (`now`), without origins, roles and marks; blocks as the device
        numbers them."""
        return [make_event(record, None, None) for record in self._records(since)]

    def timed_events(self, since: int, launched: int) -> tuple[list[Event], int]:
        """As `plain_events`, with what was launched after the first so many launches; and how many there are by now.
        What Inductor's timing takes where its cache is empty is left out."""
        launches = work_records.read_launches(launched)
        events, following = list[Event](), iter(launches)
        launch = next(following, None)
        for position, record in enumerate(self._records(since), since):
            while launch is not None and launch[3] <= position:
                events += _launch_events(launch)
                launch = next(following, None)
            if not self._is_of_timing(record):
                events.append(make_event(record, None, None))
        for rest in (launch, *following) if launch is not None else ():
            events += _launch_events(rest)
        return events, launched + len(launches)

    def _is_of_timing(self, record: tuple[int, ...]) -> bool:
        kind, operator, block = record[0], record[1], record[4]
        if kind == ALLOC and operator == self._timing:
            self._timed_blocks.add(block)
        if block not in self._timed_blocks or kind not in (ALLOC, FREE, USE):
            return False
        if kind == FREE:
            self._timed_blocks.discard(block)
        return True

    def settle(self) -> None:
        """Wait until autograd's device thread has freed the graph of every backward that has ended."""
        self._native.paper_settle_backward()

    def here(self) -> tuple[int, int]:
        """How many records and launches there are by now."""
        return self.now(), int(self._native.paper_launch_count())

    def births(self, stretch: Stretch) -> Births:
        """The blocks that are born in a stretch."""
        rows = [row for row in self._records_between(stretch.first, stretch.after) if row[0] == ALLOC]
        return Births([row[4] for row in rows], tuple((row[5], row[3]) for row in rows))

    def write_again(self, stretch: Stretch, births: Births, names: Mapping[int, int], kept: Collection[int]) -> Births:
        """What was written down in a stretch happens once more, with new blocks for its `births`: those. `names` are
        blocks that stand for others of earlier stretches; those of `kept` are freed by their tensors.

        Raises DoesNotFoldError if it frees what is neither its own nor named.
        """
        count = len(births.blocks)
        born = (ctypes.c_int64 * count)()
        pairs = (ctypes.c_int64 * (2 * len(names)))(*chain.from_iterable(names.items()))
        others = (ctypes.c_int64 * len(kept))(*kept)
        place = (ctypes.c_int64 * 4)(stretch.first, stretch.after, stretch.first_launch, stretch.after_launch)
        if not self._native.paper_write_again(place, pairs, len(names), others, len(kept), born):
            raise DoesNotFoldError("it frees what is not its own")
        for old, new in zip(births.blocks, born, strict=True):
            if (role := self._born_as.get(old)) is not None:
                self._assign_block(new, role.category, role.name)
        return births._replace(blocks=born[:])

    def tensor_of(self, block: int, like: torch.Tensor) -> torch.Tensor:
        """A tensor whose memory is a block that `write_again` has written down: it frees it."""
        self._native.paper_adopt_block(block)
        return torch.empty(like.shape, dtype=like.dtype, device="cuda")

    def now(self) -> int:
        """How much has happened since `start`."""
        return int(self._native.paper_count())

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        """The memory of `tensor` belongs to `category`: since its birth if nothing was said of it before."""
        blocks = native_records.blocks_of(tensor)
        if not blocks and self.host is not None:
            self.host.assign(tensor, category, name)
        for block in blocks:
            before = self._category.get(block)
            if before is not category and not (before is Category.BUCKET and category is Category.GRADIENT):
                self._assign_block(block, category, name)

    def first_allocation(self, since: int, until: int) -> int:
        """Where something was allocated first between two moments (`now`); `until` if nothing was."""
        births = (at for at, record in enumerate(self._records_between(since, until), since) if record[0] == ALLOC)
        return next(births, until)

    def assign_batch(self, tensors: Sequence[torch.Tensor], since: int, until: int) -> int:
        """Between two moments (`now`) a batch was put on the device, these tensors among it: where that began, `until`
        if it was not. What was allocated from there on and stayed belongs to the batch.

        One that came later stands for a tensor of as many numbers: fully_shard casts what a forward is given.
        """
        if not tensors:
            return until
        given = {block for tensor in tensors for block in native_records.blocks_of(tensor)}
        records = list(enumerate(self._records_between(since, until), since))
        here = {record[4] for _, record in records if record[0] == ALLOC}
        uncast = {
            tensor.numel() * size
            for tensor in tensors
            for size in _FLOAT_SIZES
            if tensor.is_floating_point() and here.isdisjoint(native_records.blocks_of(tensor))
        }
        born: dict[int, int] = {}
        for position, (kind, *_, block, size, _, _, _) in records:
            if kind == ALLOC and (born or block in given or size in uncast):
                born[block] = position
            elif kind == FREE:
                born.pop(block, None)
        for block in born:
            if block not in self._category:
                self._assign_block(block, Category.INPUT, "")
                self._guessed.add(block)
        return min(born.values(), default=until)

    def is_assigned(self, tensor: torch.Tensor) -> bool:
        """Whether something was said of the storage of `tensor`."""
        return self.block_of(tensor) in self._category

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:
        """Storages born inside and alive at the end belong to `category`."""
        first = self._native.paper_count()
        yield
        room = self._native.paper_count() - first
        blocks = (ctypes.c_int64 * max(room, 1))()
        alive = self._native.paper_born_alive(first, blocks, room)
        for block in blocks[:alive]:
            if block not in self._category:
                self._assign_block(block, category, name)

    def enter(self, path: str) -> None:
        self._open.append(self._native.paper_enter_scope(self._scope_number(path)))

    def leave(self) -> None:
        self._native.paper_enter_scope(self._open.pop())

    def enter_below(self, path: str) -> int:
        """The module at this path below the one that is at work is entered; `return_to` what is given back."""
        at_work = int(self._native.paper_enter_scope(0))
        above = self._paths[at_work]
        below = f"{above}.{path}" if above and path else above or path
        self._native.paper_enter_scope(self._scope_number(below))
        return at_work

    def return_to(self, scope: int | None) -> None:
        self._native.paper_enter_scope(scope or 0)

    def _scope_number(self, path: str) -> int:
        if path not in self._scopes:
            self._scopes[path] = len(self._paths)
            self._paths.append(path)
        return self._scopes[path]

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside only what stays is written down, and at the end: whether it was compiled or came from a cache, the
        program does the same."""
        self._native.paper_begin_compiling()
        try:
            yield
        finally:
            self._native.paper_end_compiling()

    def events(self, until: int | None = None) -> list[Event]:
        """Everything since `start`, in order, up to a moment (`now`); blocks are numbered from 0."""
        records = self._records()[:until]
        return [event for event in self._in_order(records, self._number_blocks(records)) if event is not None]

    def hear_collective(
        self, name: str, group: dist.ProcessGroup, arguments: Sequence[Any]
    ) -> AbstractContextManager[work_records.Issued | None]:
        """A collective of absent peers is issued (`planner.training.absent_peers.tell_collectives`)."""
        if group not in self._groups:  # of a large world it takes time to look at all of its ranks
            ranks = sorted(distributed_c10d._world.pg_group_ranks.get(group, range(group.size())))
            self._groups[group] = work_records.RankGroup.of(len(self._groups) + 1, ranks)
        is_asynchronous = any(getattr(option, "asyncOp", False) for option in arguments)
        return work_records.collective_launched(
            name, self._groups[group], arguments, is_asynchronous=is_asynchronous, holding=self._holding
        )

    def work(self, until: int | None = None, left_out: Sequence[LeftOut] = (), *, recurs: bool = False) -> StepWork:
        """What the device computes in the last whole iteration before a moment (`now`), with what was left out of it
        and, if that `recurs`, a forward without gradients; where times matter all of its kernels are named, as launches
        among the events number them."""
        until = self.now() if until is None else until
        names_all = self._times_matter(until)
        return work_records.work_of_iteration(self._hindsight, until, left_out, names_all=names_all, recurs=recurs)

    def repeating_events(
        self, until: int, cuts: Sequence[int], iteration_ends: Sequence[int], left_out: Sequence[LeftOut] = ()
    ) -> tuple[list[Event], list[Repeat]]:
        """As `events`, with stretches that repeat written once: those between `cuts` (`now`) are compared, or, where
        something was left out, those that stand for it.

        `iteration_ends`: where the iterations end, of which a stretch may have some. Raises DoesNotFoldError.
        """
        content = ctypes.string_at(self._native.paper_records(), until * RECORD.size)
        launches = work_records.read_launches() if self._times_matter(until) else []
        waits = [position for kind, _, _, position in launches if kind in _HOST_WAITS]
        columns = Records(content, waits)
        folds = fold_left_out(columns, left_out) if left_out else find_folds(columns, cuts)
        numbers = {int(block): number for number, block in enumerate(columns.blocks.tolist())}
        # A block may be older than a fold and still change its name after it: of what several repetitions hold, each
        # repetition frees the oldest, and the others move up.
        names, later, heirs = dict(numbers), [], []
        for fold in folds:
            heirs.append(tuple((names[given_up], names[left]) for given_up, left in fold.heirs))
            later.append({block: names[first] for block, first in columns.stand_ins(fold)})
            names.update(later[-1])
        events: list[Event] = []
        places: list[int] = []
        for event in self._in_order(list(RECORD.iter_unpack(content)), numbers, folds, later):
            if event is None:
                places.append(len(events))
            else:
                events.append(event)
        repeats = [
            Repeat(first, after, fold.times, sum(fold.first < end <= fold.after for end in iteration_ends), passed_on)
            for fold, passed_on, first, after in zip(folds, heirs, places[::2], places[1::2], strict=True)
        ]
        return events, repeats

    def _in_order(
        self,
        records: list[tuple[int, ...]],
        numbers: dict[int, int],
        folds: Sequence[Fold] = (),
        later: Sequence[Mapping[int, int]] = (),
    ) -> Iterator[Event | None]:
        """What is folded away is left out; None is where the stretch that stands for it begins, and where it ends.

        `numbers` are the names of blocks; after each of `folds` those of `later` are added to them.
        """
        origins = Origins(self._native, self._paths)
        launches = work_records.read_launches() if self._times_matter(len(records)) else []
        launched = 0
        gpu_events = work_records.number_events(launches)
        workspaces = {self._native.paper_name_index(name.encode()): name for name in _WORKSPACES}
        begins = {fold.first for fold in folds}
        ends = {fold.after: (fold, names) for fold, names in zip(folds, later, strict=True)}
        position = -1
        while (position := position + 1) < len(records):
            if position in ends:
                yield None
                fold, names = ends[position]
                numbers.update(names)
                position = fold.end
                while launched < len(launches) and launches[launched][3] < position:
                    launched += 1
                if position == len(records):
                    break
            if position in begins:
                yield None
            record = records[position]
            after = launched
            while after < len(launches) and launches[after][3] <= position:
                after += 1
            if after > launched or position in self._placed:
                yield from self._between_records(position, launches[launched:after], numbers, gpu_events)
                launched = after
            if record[0] == USE and position and record == records[position - 1]:
                continue  # said once for each rank's part of what was gathered
            yield make_event(record, origins, numbers)
            if record[0] != ALLOC:
                continue
            if record[4] in self._born_as:
                yield renumber(self._born_as[record[4]], numbers)
            elif record[1] in workspaces:
                yield Role(numbers[record[4]], Category.WORKSPACE, workspaces[record[1]])
        rest = [launch for launch in launches[launched:] if launch[3] == len(records)]
        yield from self._between_records(len(records), rest, numbers, gpu_events)

    def _between_records(
        self,
        position: int,
        launches: Sequence[tuple[int, ...]],
        numbers: Mapping[int, int],
        gpu_events: Mapping[int, int],
    ) -> Iterator[Event]:
        """What Python placed before a record, and what was launched since the one before it, in their order."""
        placed = self._placed.get(position, ())
        yield from (event for event in placed if isinstance(event, Mark))
        for launch in launches:
            yield from _launch_events(launch, numbers, gpu_events)
        yield from (renumber(event, numbers) for event in placed if isinstance(event, Role))

    def _times_matter(self, until: int) -> bool:
        """Whether a block is freed that another stream uses or a collective keeps: when it is free is a question of
        time, and launches stand among the events."""
        return bool(0 <= self._native.paper_first_timed_free() < until)

    def _assign_block(self, block: int, category: Category, name: str) -> None:
        role = Role(block, category, name)
        if block in self._category and block not in self._guessed:
            self._placed[self._native.paper_count()].append(role)
        else:
            self._born_as[block] = role
        self._guessed.discard(block)
        self._category[block] = category

    def _records(self, since: int = 0) -> list[tuple[int, ...]]:
        return list(self._records_between(since, self._native.paper_count()))

    def _records_between(self, since: int, until: int) -> Iterator[tuple[int, ...]]:
        if until <= since:
            return iter(())
        begin = self._native.paper_records() + since * RECORD.size
        return RECORD.iter_unpack(ctypes.string_at(begin, (until - since) * RECORD.size))

    def _number_blocks(self, records: Iterable[tuple[int, ...]]) -> dict[int, int]:
        """The device counts its blocks for as long as the process lives; a trace says the same every time."""
        born = (record[4] for record in records if record[0] == ALLOC)
        return {block: number for number, block in enumerate(born)}


def _launch_events(
    launch: tuple[int, ...], numbers: Mapping[int, int] | None = None, gpu_events: Mapping[int, int] | None = None
) -> Iterator[Launch | Keep]:
    """As an event, with blocks and the GPU's events as they are numbered; nothing for what names a block that has no
    number."""
    kind, stream, what, _ = launch
    if gpu_events is not None and kind in work_records.NAMES_AN_EVENT:
        what = gpu_events[what]
    if kind == LaunchKind.KEEP:
        if numbers is None or stream in numbers:
            yield Keep(stream if numbers is None else numbers[stream], what)
    else:
        yield Launch(kind, stream, what)
