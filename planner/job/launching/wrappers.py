"""Commands that run another command: containers, profilers, and what changes a process's priority, user or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.job.json_text import packaged_json
from planner.job.launching.launchers import OptionTable, read_options, refused


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Options by their letters and their names with underscores; whatever else it has takes a value."""

    source: str
    letters: str = ""
    """With a value."""
    flags: str = ""
    """Letters without one."""
    alone: str = ""
    """Names without one."""
    skipped: int = 0
    """Words before the command: an image, a duration."""
    subcommands: Sequence[str] = ()
    """One of which comes first; without any it is another command."""
    of_environment: str = ""
    of_mounts: str = ""
    """Options that put a folder of the host into a container."""
    of_folder: str = ""
    """Options that say where the command starts."""
    between: str = ""
    """What stands between several variables of one option."""


WRAPPERS = {
    name: tuple(Wrapper(**each) for each in tables)
    for names, tables in packaged_json("launching/wrappers.json").items()
    for name in names.split()
}


@dataclass(slots=True)
class Inside:
    """What a wrapper starts, and what it changes for it."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    """Folders of the host by where the container has them."""
    folder: str = ""
    """Where it starts, as the container has it."""


def read_wrapper(name: str, words: Sequence[str]) -> Inside | None:
    """What follows a wrapper's options; None where its subcommand runs no other command. Raises SpecError for options
    that it does not have, and for a container whose image decides the command."""
    words = words[1:] if words[:1] == ["container"] else words
    wrapper = next(
        (each for each in WRAPPERS[name] if not each.subcommands or (words and words[0] in each.subcommands)), None
    )
    if wrapper is None:
        return None
    letters = {letter: letter for letter in wrapper.letters + wrapper.flags}
    gathered: dict[str, list[str]] = {}
    table = OptionTable({*wrapper.flags, *wrapper.alone.split(), "help", "version"}, wrapper.source, short=letters)
    rest = read_options(words[1:] if wrapper.subcommands else words, table, gathered=gathered)[1]
    command = rest[wrapper.skipped :]
    if wrapper.skipped and command[:1] == ["--"]:
        command = command[1:]
    if not command:
        asked = "IMAGE COMMAND" if wrapper.of_mounts else "COMMAND"
        image = f" in {rest[0]}: what its image starts is not known here" if rest and wrapper.of_mounts else ""
        raise refused(f"{name} has no command to start{image}", f"{name} [options] {asked} ...")
    inside = Inside(command)
    for option in wrapper.of_environment.split():
        for pair in gathered.get(option, []):
            parts = pair.split(wrapper.between) if wrapper.between else [pair]
            inside.variables |= {key: value for key, equals, value in (part.partition("=") for part in parts) if equals}
    for option in wrapper.of_mounts.split():
        for value in gathered.get(option, []):
            inside.mounts |= read_mounts(value)
    inside.folder = next((gathered[option][-1] for option in wrapper.of_folder.split() if option in gathered), "")
    return inside


def read_mounts(written: str) -> dict[str, str]:
    """Folders of the host by those of a container, of `host:container[:options]`, several of these between commas, or
    `type=bind,source=host,target=container`."""
    if "=" in written:
        named = dict(part.partition("=")[::2] for part in written.split(","))
        host = named.get("source") or named.get("src") or ""
        container = next((named[key] for key in ("target", "destination", "dst") if named.get(key)), "")
        return {container: host} if host.startswith(("/", ".")) and container else {}
    mounts = {}
    for part in written.split(","):
        host, colon, rest = part.partition(":")
        if colon and host.startswith(("/", ".", "~")):
            mounts[rest.partition(":")[0].rstrip("/") or "/"] = host.rstrip("/") or "/"
    return mounts


def on_host(path: str, mounts: Mapping[str, str]) -> str:
    """A path of a container as the host has it; as it is where no mount says."""
    for container in sorted(mounts, key=len, reverse=True):
        if path == container or path.startswith(f"{container.rstrip('/')}/"):
            return mounts[container] + path[len(container.rstrip("/")) :]
    return path
