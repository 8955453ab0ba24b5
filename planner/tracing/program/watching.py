"""Watches a program by global hooks of torch: forwards, backwards, steps, checkpoints, what tensors are for."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from planner import upstream
from planner.events import Category, Phase
from planner.paper.recorder import Recorder
from planner.roles import pipelines
from planner.roles.modules import ModuleRoles, parameters_of
from planner.roles.recording import surrounded
from planner.roles.whole_training import watch_parallelism
from planner.tracing.program import unwritten_host
from planner.tracing.program.divided_models import describe_division
from planner.tracing.program.input_sizes import InputSizes
from planner.tracing.program.stopping import Kind, Moments
from planner.training.phases import find_phase

_Versions = tuple[int, int | None]
"""How often a parameter and its gradient were written to; None: it has no gradient."""


class StepsByHand:
    """What backwards have left, and whether a program has done something with it since.

    A step writes to parameters, or clears gradients; one that writes by `.data` alone and clears nothing is not seen.
    """

    def __init__(self) -> None:
        self._parameters = WeakIdKeyDictionary()
        """With what the last backward has left of each."""
        self._waits = False
        """Whether there was a backward since the last step."""
        self._steps = False

    def know(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                self._parameters.setdefault(parameter, _read_versions(parameter))

    def backward_ended(self) -> None:
        """What there is now is what this backward has left."""
        self._waits = True
        for parameter in self._parameters:
            self._parameters[parameter] = _read_versions(parameter)

    def is_made(self) -> bool:
        """Whether there was a step since the last backward; true once. A model that is gone was stepped, if ever."""
        if not self._waits:
            return False
        is_gone_after_a_step = self._steps and not self._parameters
        if not is_gone_after_a_step and all(
            _read_versions(parameter) == left for parameter, left in self._parameters.items()
        ):
            return False
        self._waits, self._steps = False, True
        return True

    def parameters(self) -> Iterable[Tensor]:
        """Those that may be trained."""
        return (parameter for parameter in self._parameters)


def _read_versions(parameter: Tensor) -> _Versions:
    return parameter._version, None if parameter.grad is None else parameter.grad._version


_STATE_DICT = "torch.distributed.checkpoint.state_dict"
_STATE_DICT_FUNCTIONS = {
    "_get_model_state_dict": Kind.GATHER,
    "_get_optim_state_dict": Kind.GATHER,
    "_load_model_state_dict": Kind.LOAD,
    "_load_optim_state_dict": Kind.LOAD,
}
_BACKWARD_OF_STAGES = f"{pipelines.PACKAGE}.stage:_PipelineStageBase.backward_one_chunk"
_STEPS_OF_SCHEDULES = tuple(
    f"{pipelines.PACKAGE}.schedules:{name}.step" for name in ("PipelineScheduleSingle", "PipelineScheduleMulti")
)
_CLIPPING = (
    "torch.nn.utils:get_total_norm",
    "torch.nn.utils:clip_grads_with_norm_",
    "torch.nn.utils.clip_grad:_get_total_norm",
    "torch.nn.utils.clip_grad:_clip_grads_with_norm_",
    "torch.distributed.fsdp:FullyShardedDataParallel.clip_grad_norm_",
)
_OWNERS: dict[Phase | None, str] = {Phase.REFERENCE_FORWARD: "reference.", Phase.REWARD_FORWARD: "reward."}
"""What the names begin with of parameters whose module is called in one of these phases first."""
_BY_HAND = 0
"""Stands for the optimizer of a program that has none of torch.optim."""
WHOLE_EVERY = 64
"""Forwards of a program that only infers. Looking at all objects of a process takes tenths of a second."""
_YOUNG, _ALL = 1, 2
"""Generations of Python's collector: up to the first one has it what was born since it last ran."""
_OFTEN = 2
"""State is born in an optimizer's first step."""
_SETTLED = 3
"""Steps after which models and optimizers stay divided as they are: DDP makes its buckets anew in the second."""


class Watcher:
    """Follows one program. `infers` is called before each forward until an optimizer is made or a backward begins; then
    `trains` before each forward that is trained, each backward and each optimizer step, `evaluates` before each other
    forward: they may end it all. `tells` hears of every moment, by its index,
    `inputs` of what outermost forwards were given."""

    def __init__(
        self,
        recorder: Recorder,
        trains: Callable[[], None],
        evaluates: Callable[[], None],
        infers: Callable[[], None],
        tells: Callable[[int], None],
        inputs: InputSizes,
    ) -> None:
        self.moments = Moments()
        self._recorder, self._tells, self._inputs = recorder, tells, inputs
        self._trains, self._evaluates, self._infers = trains, evaluates, infers
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """How often each has stepped, of those that there are."""
        self._owners: dict[tuple[int, ...], list[ref[Optimizer]]] = {}
        """Those of the same parameters, by what names these."""
        self._hosts: WeakKeyDictionary[Optimizer, AbstractContextManager[Any]] = WeakKeyDictionary()
        """What is around the steps that are at work."""
        self._by_hand = StepsByHand()
        self._modules = ModuleRoles(recorder)
        self._paths = WeakIdKeyDictionary()
        self._roots = WeakIdKeyDictionary()
        self._open = threading.local()
        self._backward = False
        self._step_began = -1
        self._noted = False
        self._named_phase: Phase | None = None
        self.division: dict[str, Any] = {}
        """How models and optimizers are divided over the ranks, as fields of a trace."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        handles = (
            register_module_forward_pre_hook(self._forward_begins),
            register_module_forward_hook(self._forward_ends, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._step_starts),
            register_optimizer_step_post_hook(self._step_ends),
        )

        def knowing_optimizers(real: Any) -> Any:
            @functools.wraps(real)
            def init(optimizer: Optimizer, *arguments: Any, **named: Any) -> None:
                real(optimizer, *arguments, **named)
                self._optimizers.setdefault(optimizer, 0)

            return init

        wrapped: dict[str, upstream.Wrapper] = {
            "torch.autograd:_engine_run_backward": self._around_backward,
            "torch.optim:Optimizer.__init__": knowing_optimizers,
            "torch.autograd.profiler:record_function.__enter__": self._entering,
            "torch.autograd.profiler:record_function.__exit__": self._leaving,
            **dict.fromkeys(_CLIPPING, unwritten_host.clipping),
            "torch:save": self._noting(Kind.SAVE),
            "torch:load": self._noting(Kind.LOAD),
            **{f"{_STATE_DICT}:{name}": self._noting(kind) for name, kind in _STATE_DICT_FUNCTIONS.items()},
        }
        of_pipelines: dict[str, upstream.Wrapper] = {
            _BACKWARD_OF_STAGES: partial(surrounded, before=lambda *_, **_named: self._tell(Kind.BACKWARD)),
            **dict.fromkeys(_STEPS_OF_SCHEDULES, partial(surrounded, after=lambda *_, **_named: self._end_backwards())),
        }
        try:
            with (
                upstream.patch_targets("program watched", wrapped=wrapped),
                upstream.when_imported(
                    {pipelines.PACKAGE: lambda: upstream.patch_targets("pipelines watched", wrapped=of_pipelines)}
                ),
                watch_parallelism(self._recorder),
            ):
                yield
        finally:
            for handle in handles:
                handle.remove()
            for host in self._hosts.values():  # around a step that has raised
                host.__exit__(None, None, None)

    def _end_backwards(self) -> None:
        """What was done since the last one belongs to it."""
        if self.moments.backward_ends:
            self.moments.backward_ends[next(reversed(self.moments.backward_ends))] = self._recorder.now()

    def saves(self) -> None:
        """A checkpoint is written by other means than torch.save."""
        if threading.current_thread() is threading.main_thread():
            self.notice_step_by_hand()
            self._tell(Kind.SAVE)

    def begin_step(self) -> None:
        """The next step begins here, whatever is done before an optimizer steps."""
        self._step_began = self._recorder.now()

    def notice_step_by_hand(self) -> None:
        """What follows is no part of a step: one that no optimizer of torch.optim has made is over now."""
        if self._optimizers or not self._by_hand.is_made():
            return
        self.moments.add(next(reversed(self.moments.backward_ends.values())), Kind.STEP, _BY_HAND)
        self._tell(Kind.STEPPED, _BY_HAND)
        _collect_garbage()

    @property
    def steps_by_hand(self) -> bool:
        """Whether iterations are those that `notice_step_by_hand` found."""
        return self.moments.steps[_BY_HAND] > 0

    def idle_optimizers(self) -> int:
        """How many have parameters, and have not stepped twice."""
        return sum(steps < _OFTEN for optimizer, steps in self._optimizers.items() if list(parameters_of(optimizer)))

    def _tell(self, kind: Kind, parameters: int = 0, phase: Phase | None = None) -> int:
        """The index of the moment."""
        index = len(self.moments.log)
        self._tells(index)
        self.moments.add(self._recorder.now(), kind, parameters, phase)
        return index

    def _entering(self, real: Any) -> Any:
        """What stands for `record_function.__enter__`: a program may name its phases."""

        def enter(named: Any) -> Any:
            if (phase := find_phase(named.name)) is not None:
                self.notice_step_by_hand()
                self._tell(Kind.NAMED, phase=phase)
                self._named_phase = phase
            return real(named)

        return enter

    def _leaving(self, real: Any) -> Any:
        def leave(named: Any, *error: Any) -> Any:
            if find_phase(named.name) is not None:
                if self._named_phase is Phase.CHECKPOINT_LOAD:
                    for optimizer in self._optimizers:
                        self._modules.assign_state(optimizer)
                self._tell(Kind.NAMED_ENDED)
                self._named_phase = None
            return real(named, *error)

        return leave

    def _noting(self, kind: Kind) -> Callable[[Any], Any]:
        """What is done in the background, or on the way to something else that is noted, is not a moment of its own."""

        def wrap(real: Any) -> Any:
            @functools.wraps(real)
            def noted(*arguments: Any, **options: Any) -> Any:
                if self._noted or threading.current_thread() is not threading.main_thread():
                    return real(*arguments, **options)
                self.notice_step_by_hand()
                self._tell(kind)
                self._noted = True
                try:
                    return real(*arguments, **options)
                finally:
                    self._noted = False

            return noted

        return wrap

    def _forward_begins(self, module: nn.Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling():  # what is compiled says itself of which module an allocation is
            return
        depth = getattr(self._open, "depth", 0)
        if depth == 0 and not self._backward:
            self._root_begins(module)
        if depth == 0:
            self._open.began = self._recorder.now()
        self._open.depth = depth + 1
        self._recorder.enter(self._paths.get(module, ""))

    def _forward_ends(self, module: nn.Module, arguments: Any, *named_and_output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if getattr(self._open, "depth", 0):
            self._open.depth -= 1
            self._recorder.leave()
            if not self._open.depth and not self._backward and len(named_and_output) > 1:  # it has not raised
                allocates = self._recorder.now() > self._open.began
                self._inputs.take(module, arguments, named_and_output[0], allocates=allocates)
                self._begin_with_its_batch(self._open.moment, (arguments, named_and_output[0]))

    def _root_begins(self, module: nn.Module) -> None:
        if not self._roots:
            _collect_garbage()  # what building a model drops dies young, and Python soon collects the young
        if module not in self._roots:
            self._roots[module] = True
            for path, inner in module.named_modules():
                self._paths.setdefault(inner, path)
            self._by_hand.know(module.parameters())
            self._modules.take(module, _OWNERS.get(self._named_phase, ""))
        elif not self._are_assigned(module):  # it rested on the host, and what its optimizers keep with it
            self._modules.take_again(module)
            for optimizer in self._optimizers:
                self._modules.assign_state(optimizer)
        self.notice_step_by_hand()
        only_infers = not self._optimizers and not self.moments.trains
        if only_infers:
            _collect_garbage(_YOUNG if self.moments.forwards % WHOLE_EVERY else _ALL)
            self._infers()
        is_trained = torch.is_grad_enabled()
        if not only_infers:
            (self._trains if is_trained else self._evaluates)()
        if is_trained:
            self._open.moment = self._tell(Kind.FORWARD)
        else:
            is_evaluation = not module.training and self._is_trained(module)
            self._open.moment = self._tell(Kind.EVAL if is_evaluation else Kind.ASIDE)

    def _are_assigned(self, module: nn.Module) -> bool:
        first = next(module.parameters(), None)
        return first is None or not first.is_cuda or self._recorder.is_assigned(first)

    def _begin_with_its_batch(self, index: int, inputs: Any) -> None:
        """A forward begins when what it is given is put on the device, after the step or the backward before it."""
        since = self.moments.end_before(index)
        if since is not None:
            tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_cuda]
            seen = self.moments.log[index].position
            self.moments.begin_at(index, self._recorder.assign_batch(tensors, since, seen))

    def _is_trained(self, root: nn.Module) -> bool:
        """A teacher is not, nor a mean of what is trained."""
        known = {id(parameter) for optimizer in self._optimizers for parameter in parameters_of(optimizer)}
        return any(id(parameter) in known if known else parameter.requires_grad for parameter in root.parameters())

    def _around_backward(self, real: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            # A block is recomputed inside another backward, or a compiler traces one.
            if self._backward or _is_traced():
                return real(*arguments, **options)
            self.notice_step_by_hand()
            self._trains()
            began = self._tell(Kind.BACKWARD)
            self._backward = True
            try:
                return real(*arguments, **options)
            finally:
                self._backward = False
                self._recorder.settle()
                self.moments.backward_ends[began] = self._recorder.now()
                for parameter in self._by_hand.parameters():
                    self._modules.assign_gradient(parameter)
                if not self._optimizers:  # whose steps say themselves when an iteration ends
                    self._by_hand.backward_ended()

        return run

    def _step_starts(self, optimizer: Optimizer, *_arguments: Any) -> None:
        _leave_graph()
        if self._is_no_training(optimizer):
            return
        self._trains()
        self._modules.begin_step(optimizer)
        self._hosts[optimizer] = unwritten_host.beside(parameters_of(optimizer))
        index = self._tell(Kind.STEP, self._part(optimizer))
        since = self.moments.end_before(index)
        if self._backward:
            self.moments.steps_in_backward.add(index)
        elif since is not None:  # clipping is a part of the step
            is_told = self._step_began >= since
            first = self._step_began if is_told else self._recorder.first_allocation(since, self._recorder.now())
            self.moments.begin_at(index, first)
        self._hosts[optimizer].__enter__()

    def _is_no_training(self, optimizer: Optimizer) -> bool:
        """A twin that steps on the meta device to say what state there will be trains nothing, nor does an optimizer
        that steps while its state dict is made (torch 2.13, checkpoint/state_dict.py, _init_optim_state)."""
        return self._noted or next((parameter.is_meta for parameter in parameters_of(optimizer)), False)

    def _step_ends(self, optimizer: Optimizer, *_arguments: Any) -> None:
        _leave_graph()
        if optimizer in self._hosts:
            self._hosts.pop(optimizer).__exit__(None, None, None)
        if self._is_no_training(optimizer):
            return
        self._modules.assign_state(optimizer)
        self._tell(Kind.STEPPED, self._part(optimizer))
        steps = self._optimizers[optimizer] = self._optimizers.get(optimizer, 0) + 1
        if steps <= _SETTLED:
            self.division |= describe_division(list(self._roots), optimizer)
        _collect_garbage()

    def _part(self, optimizer: Optimizer) -> int:
        """The same for every step of the same parameters: DeepSpeed steps one optimizer in parts, with others each
        time, and a program may make an optimizer in the place of one that it has dropped."""
        firsts = tuple(id(group["params"][0]) for group in optimizer.param_groups if group["params"])
        owners = self._owners.setdefault(firsts, [])
        living = [owner() for owner in owners]
        if optimizer not in living:
            place = living.index(None) if None in living else len(living)
            owners[place : place + 1] = [ref(optimizer)]
            return hash((firsts, place))
        return hash((firsts, living.index(optimizer)))


def assign_uncalled_modules(recorder: Recorder) -> None:
    """What modules hold that nobody has called (a mean of the trained weights, a teacher) are parameters too."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and "_modules" in vars(each)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    for root in (module for module in modules if id(module) not in inner):
        for name, tensor in (*nn.Module.named_parameters(root), *nn.Module.named_buffers(root)):
            if tensor.is_cuda and not recorder.is_assigned(tensor):
                recorder.assign(tensor, Category.PARAMETER, name)


def _leave_graph() -> None:
    """A step that is compiled is seen where torch itself breaks its graph, before and after (torch 2.13,
    optim/optimizer.py, _use_grad_for_differentiable)."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break()


def _is_traced() -> bool:
    return any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())


def _collect_garbage(generation: int = _ALL) -> None:
    if gc.isenabled():  # a program that has switched it off keeps its cycles, as on a GPU
        gc.collect(generation)
