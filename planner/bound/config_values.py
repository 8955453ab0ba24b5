"""Numbers and flags of a transformers config, with the defaults of its class; anything else is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST = 2**40
"""No size of a model is larger: what is, is a mistake, and its product with others a number without end."""


class UnknownSizeError(Exception):
    """The config does not say a size in a way that is understood; transformers may still take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues:
    """A config's content over the defaults of its class; `aliases` are other names that transformers takes."""

    content: Mapping[str, Any]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def whole(self, name: str, *, least: int = 1) -> int:
        """A whole number. Raises UnknownSizeError for anything else, null included."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise UnknownSizeError(name)
        return value

    def whole_or(self, name: str, otherwise: int) -> int:
        """A whole number, or `otherwise` where it is null or not said. Raises UnknownSizeError."""
        return otherwise if self._value(name) is None else self.whole(name)

    def flag(self, name: str) -> bool:
        """True or false. Raises UnknownSizeError for anything else."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise UnknownSizeError(name)
        return value

    def is_null(self, name: str) -> bool:
        """Whether it is null or not said. Raises UnknownSizeError if two names contradict each other."""
        return self._value(name) is None

    def multiples(self, name: str, *, step: int, below: int) -> int:
        """How many different n from 1 to `below` that `step` divides a list has as n - 1. Raises UnknownSizeError."""
        value = self._value(name)
        if value is None:
            return 0
        if not isinstance(value, list | tuple) or not all(type(each) is int for each in value):
            raise UnknownSizeError(name)
        return len({each for each in value if 0 <= each < below and (each + 1) % step == 0})

    def _value(self, name: str) -> Any:
        names = (name, *(alias for alias, meant in self.aliases.items() if meant == name))
        said = [self.content[each] for each in names if each in self.content]
        if len(said) > 1 and any(each != said[0] for each in said):
            raise UnknownSizeError(name)
        return said[0] if said else self.defaults.get(name)
