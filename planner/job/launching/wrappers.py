"""Commands that run another command: containers, profilers, and what changes a process's priority, user or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    subcommands: tuple[str, ...] = ()
    """One of which comes first; without any it is another command."""
    of_environment: str = ""
    of_mounts: str = ""
    """Options that put a folder of the host into a container."""
    of_folder: str = ""
    """Options that say where the command starts."""


_CONTAINER = Wrapper(
    "docker run (docs.docker.com, Docker 29) or podman run (podman 5.6)", "acehlmpuvw", "ditPq",
    "detach interactive tty rm init privileged read_only no_healthcheck oom_kill_disable publish_all sig_proxy quiet "
    "disable_content_trust replace rmi tls_verify env_host http_proxy no_hosts no_hostname passwd rootfs "
    "read_only_tmpfs use_api_socket", 1, ("run",), "e env", "v volume mount", "w workdir",
)  # fmt: skip
_APPTAINER = Wrapper(
    "apptainer of Apptainer 1.4, singularity of SingularityCE 4", "BHWSos", "cCefipnuw",
    "nv rocm nvccli contain containall cleanenv fakeroot pid ipc net userns uts writable writable_tmpfs no_home "
    "no_init no_privs keep_privs compat no_compat no_eval no_umask no_https nohttps disable_cache allow_setuid bare "
    "docker_login no_pid sharens silent no_setgroups ignore_fakeroot_command ignore_subuid ignore_userns oci no_oci "
    "netns unsquash no_tmp_sandbox keep_layers passphrase quiet underlay nv_all proot tmp_sandbox runscript_timeout",
    1, ("exec", "run"), "env", "B bind mount", "pwd cwd",
)  # fmt: skip
_EXEC = Wrapper(
    "docker exec", "euw", "dit", "detach interactive tty privileged", 1, ("exec",), "e env", "", "w workdir"
)
_PLAIN = "util-linux 2.41 or coreutils 9.7"
WRAPPERS: Mapping[str, tuple[Wrapper, ...]] = {
    **dict.fromkeys(("docker", "podman", "nerdctl", "nvidia-docker"), (_CONTAINER, _EXEC)),
    **dict.fromkeys(("apptainer", "singularity"), (_APPTAINER,)),
    "enroot": (
        Wrapper("enroot start 3.5", "cem", "rw", "root rw", 1, ("start",), "e env", "m mount", ""),
    ),
    "shifter": (Wrapper("shifter 24", "iVewm", "", "clearenv", 0, (), "e env", "V volume", "w workdir"),),
    "nsys": (
        Wrapper("nsys of Nsight Systems 2025", "bcdefghikmnopqstwxyDFVNLPQ", "", "", 0, ("profile", "launch")),
    ),
    "ncu": (
        Wrapper(
            "ncu of Nsight Compute 2025", "ociskp", "fvq",
            "force_overwrite nvtx verbose quiet csv call_stack print_units_base details_all list_sets list_sections "
            "no_print_kernel nvtx_push_pop_scope import_source_all",
        ),
    ),
    "nice": (Wrapper(_PLAIN, "n0123456789"),),
    "ionice": (Wrapper(_PLAIN, "cnpPu", "t", "ignore"),),
    "chrt": (Wrapper(_PLAIN, "TPD", "abfiormvR", "batch fifo idle other rr all_tasks verbose reset_on_fork", 1),),
    "taskset": (Wrapper(_PLAIN, "", "acp", "all_tasks cpu_list pid", 1),),
    "timeout": (Wrapper(_PLAIN, "ks", "vfp", "foreground preserve_status verbose", 1),),
    "stdbuf": (Wrapper(_PLAIN, "ioe"),),
    "numactl": (Wrapper("numactl 2.0.19", "iNmCpP", "l", "localalloc balancing"),),
    "sudo": (
        Wrapper(
            "sudo 1.9", "ugCDhprRTt", "EHnSbikAPsK",
            "preserve_env set_home non_interactive stdin background login askpass preserve_groups shell",
        ),
    ),
    "xvfb-run": (Wrapper("xvfb-run 21", "efnpsw", "al", "auto_servernum listen_tcp"),),
    "flock": (Wrapper(_PLAIN, "wE", "snuxoFv", "shared nonblock nb exclusive close no_fork verbose", 1),),
    "systemd-run": (Wrapper("systemd-run 257", "puEtM", "GPqdS", "user scope pty pipe quiet same_dir wait collect"),),
    "dumb-init": (Wrapper("dumb-init 1.2", "r", "cv", "single_child verbose"),),
    "tini": (Wrapper("tini 0.19", "pe", "sgvw"),),
    "unbuffer": (Wrapper("unbuffer 5.45", "", "p"),),
    "py-spy": (
        Wrapper("py-spy 0.4", "ordfp", "Fnitgs", "function native idle threads gil subprocesses", 0, ("record",)),
    ),
}  # fmt: skip


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
    table = OptionTable(wrapper.source, {*wrapper.flags, *wrapper.alone.split(), "help", "version"}, short=letters)
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
            # Only apptainer takes several between commas.
            parts = pair.split(",") if wrapper is _APPTAINER else [pair]
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
