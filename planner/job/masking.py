"""Masks secrets in texts that are kept or shown: values of variables, arguments and addresses that hold a password.

A plan is computed with the true values; only what is stored or shown of it is masked.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

MASK = "***"
_SHOWN = re.compile(
    r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING|CUDA_VISIBLE_DEVICES|CUDA_MODULE_LOADING"
    r"|CUBLAS_WORKSPACE_CONFIG|(?:TORCH_)?NCCL_\w+"
)
"""Variables whose values are shown, since they decide memory."""
_SHORTEST, _SHORTEST_NAMED, _LONG = 8, 4, 16
"""Characters of a value that is masked wherever it stands; of one whose name says that it is a secret; of one that is
masked within a word."""

_TOKENIZERS = ("bos", "eos", "pad", "unk", "cls", "sep", "mask", "image", "video", "audio", "stop", "per", "special")
_WORD = (
    f"(?:token{''.join(f'(?<!{word}[-_]token)' for word in _TOKENIZERS)}"
    "|passw(?:or)?d|passphrase|secret|credentials?|authorization"
    "|(?:api|access|secret|private|account|encryption|license)[-_]?key(?:[-_]?id)?)"
)
"""How the name of a secret ends; `pad_token` and its kind are words of a tokenizer."""
_NAME = re.compile(rf"{_WORD}$|^-*auth$", re.IGNORECASE)
_VALUE = r"[^\s\"'\\,;&)}\]]+"
_WORDS = ("token", "pass", "secret", "credential", "authorization", "key")
_FORMS = (
    "hf_", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "xox", "akia", "asia", "aiza",
    "npm_", "pypi-", "eyj",
)  # fmt: skip
_PATTERNS = (
    # scheme://user:password@host, and https://token@host
    (("://",), re.compile(r"://(?:[^\s/:@\"'\\]{0,200}:[^\s@\"'\\]{0,200}|[^\s/:@\"'\\]{1,200})@"), f"://{MASK}@"),
    (("bearer",), re.compile(r"(bearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE), rf"\1{MASK}"),
    # Tokens by the forms that their makers document: Hugging Face, GitHub, GitLab, OpenAI and Anthropic, Slack, AWS,
    # Google, npm, PyPI; and a JSON Web Token (RFC 7519).
    (
        _FORMS,
        re.compile(
            r"(?:hf_[A-Za-z0-9]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
            r"|sk-(?<!\wsk-)(?:proj-|ant-)?\w{20,}|xox[abeprs]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30,}"
            r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|eyJ(?<!\weyJ)[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)"
        ),
        MASK,
    ),
    # name=value, name: value, "name": "value", --name value; a bare value of a quoted name is a number or a word of
    # JSON.
    (
        _WORDS,
        re.compile(
            rf"({_WORD}(?:\\?[\"']\s{{0,3}}:\s{{0,3}}\\?[\"']|\s{{0,3}}=\s{{0,3}}\\?[\"']?|:\s{{0,3}}))"
            rf"(?!\*\*\*){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        _WORDS,
        re.compile(rf"(--(?<![\w-]--)[\w.-]{{0,40}}{_WORD}\s{{1,3}})(?!-|\*\*\*){_VALUE}", re.IGNORECASE),
        rf"\1{MASK}",
    ),
)
"""What a text has at least one of, in small letters, for the pattern to match: most texts have none, and patterns take
half a millisecond a KiB, of logs and problems on an event loop."""
_ASSIGNED = re.compile(r"(?<![\w.$-])([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s\"',;&|]+)")
_SHELL = re.compile(r"-\w*c")
"""The option of a shell before a command that is one word."""
_ENTRY = re.compile(r"([\"'])([A-Z_][A-Z0-9_]*)(\1\s*:\s*)\1((?:(?!\1)[^\\]|\\.)*)\1")
"""Of a JSON object: `"NAME": "value"`."""


def mask_text(text: str) -> str:
    """The text without what has the form of a secret. JSON stays JSON."""
    folded = text.casefold()
    for literals, pattern, masked in _PATTERNS:
        if any(literal in folded for literal in literals):
            text = pattern.sub(masked, text)
    return text


def has_secrets(text: str) -> bool:
    """Whether something in the text is masked where it is kept or shown."""
    return mask_text(text) != text


def mask_json(value: Any) -> Any:
    """A value of JSON, masked by the names of its keys too."""
    return json.loads(mask_text(json.dumps(value)))


def mask_variable(name: str, value: str) -> str:
    """What of a variable's value may leave the machine of its owner: a program behind walls has no use for a token."""
    return MASK if _NAME.search(name) else mask_text(value)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each text in it changed: of lists, mappings and dataclasses; keys stay."""
    if isinstance(value, str):
        return value if isinstance(value, Enum) else change(value)
    if isinstance(value, Mapping):
        return {key: map_texts(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_texts(each, change) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{name: map_texts(each, change) for name, each in fields})
    return value


class CommandMask:
    """Masks a command, and what its secrets are in other texts."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables that are known to be set by the command or by a script in it."""
        self._environment, self._values = environment or {}, set[str]()
        for name, value in self._environment.items():
            self._note(name, value)
        masked = tuple(self._mask_words(words))
        """Before what a later word says is known."""
        # Longest first: one value may be a part of another.
        values = sorted(self._values, key=len, reverse=True)
        self._known = re.compile("|".join(map(_value_pattern, values))) if values else None
        self.words = tuple(map(self.mask, masked))

    def mask(self, text: str) -> str:
        """The text without the values that the command gives to variables and secret options."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return mask_text(text)

    def mask_run(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Of a run's document, or of its fields, those with texts of the program, masked."""
        texts = {name: map_texts(run[name], self.mask) for name in _FREE_TEXTS if name in run}
        return {"command": type(run["command"])(self.words), **texts}

    def _mask_words(self, words: Sequence[str]) -> Iterator[str]:
        before = ""
        for word in words:
            name, equals, value = word.partition("=")
            is_option = name.startswith("-")
            if before.startswith("-") and "=" not in before and _NAME.search(before) and not is_option:
                self._note(before, word)
                yield MASK
            elif equals and not _SHELL.fullmatch(before) and self._is_secret(name, is_option):
                yield f"{name}={self._mask_value(name, value)}"
            else:
                yield _ASSIGNED.sub(self._mask_assigned, _ENTRY.sub(self._mask_entry, word))
            before = word

    def _is_secret(self, name: str, is_option: bool) -> bool:
        if is_option:
            return _NAME.search(name) is not None
        is_named = re.fullmatch(r"[A-Za-z_]\w*", name) is not None
        return is_named and (name.isupper() or name in self._environment or _NAME.search(name) is not None)

    def _mask_assigned(self, found: re.Match[str]) -> str:
        name, value = found.groups()
        return f"{name}={self._mask_value(name, value)}" if self._is_secret(name, is_option=False) else found[0]

    def _mask_entry(self, found: re.Match[str]) -> str:
        quote, name, between, value = found.groups()
        return f"{quote}{name}{between}{quote}{self._mask_value(name, value)}{quote}"

    def _mask_value(self, name: str, value: str) -> str:
        if _SHOWN.fullmatch(name):
            return mask_text(value)
        self._note(name, value.strip("\"'"))
        return MASK

    def _note(self, name: str, value: str) -> None:
        """Paths stay where the program names its files by them."""
        shortest = _SHORTEST_NAMED if _NAME.search(name) else _SHORTEST
        if len(value) >= shortest and not value.startswith("/") and not _SHOWN.fullmatch(name):
            self._values.add(value)


def _value_pattern(value: str) -> str:
    """A short value is masked as a word of its own, a long one within others too."""
    found = re.escape(value)
    return found if len(value) >= _LONG else rf"(?<![\w-]){found}(?![\w-])"


_FREE_TEXTS = ("planned", "ending", "unseen", "assumptions", "branches", "out_of_memory", "notes")
"""Of a plan, what may quote its program or its command."""
