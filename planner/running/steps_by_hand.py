"""Steps of programs that update their parameters themselves, by no optimizer of torch.optim: no hook tells them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_Left = tuple[int, int | None]
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
        self._found = False

    def know(self, parameters: Iterable[Tensor]) -> None:
        """Parameters that may be trained."""
        for each in parameters:
            if each.requires_grad:
                self._parameters.setdefault(each, _left(each))

    def backward_ended(self) -> None:
        """What there is now is what this backward has left."""
        self._waits = True
        for each in self._parameters:
            self._parameters[each] = _left(each)

    def is_found(self) -> bool:
        """Whether there was a step since the last backward; true once. A model that is gone was stepped, if ever."""
        if not self._waits:
            return False
        gone_after_a_step = self._found and not self._parameters
        if not gone_after_a_step and all(_left(each) == left for each, left in self._parameters.items()):
            return False
        self._waits, self._found = False, True
        return True

    def gradients(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Parameters with the gradients that they have."""
        return ((each, each.grad) for each in self._parameters if each.grad is not None)


def _left(parameter: Tensor) -> _Left:
    return parameter._version, None if parameter.grad is None else parameter.grad._version
