"""Tarballs that nobody packs: what a header says of a size, a time or a name is not a file's."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Iterator

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)


def header(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0, content: bytes = b"") -> bytes:
    """A member of the old format, with its content."""
    about = tarfile.TarInfo(name)
    about.type, about.size = kind, size or len(content)
    return about.tobuf(tarfile.GNU_FORMAT) + padded(content)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def pax(records: bytes, name: str = "t.py") -> bytes:
    """A member whose extended header is these bytes."""
    return header("pax", kind=tarfile.XHDTYPE, content=records) + header(name, content=b"pass") + END


def record(key: str, value: str) -> bytes:
    text = f" {key}={value}\n".encode("utf-8", "surrogateescape")
    length = len(text)
    while len(str(length)) + len(text) != length:
        length = len(str(length)) + len(text)
    return str(length).encode() + text


def with_size_field(field: bytes) -> bytes:
    """A header whose size is written as these twelve bytes, with its checksum."""
    written = bytearray(header("t.py"))
    written[124:136] = field
    written[148:156] = b" " * 8
    written[148:156] = f"{sum(written[:BLOCK]):06o}\0 ".encode()
    return bytes(written) + END


def files(*names: str, folders: tuple[str, ...] = ()) -> bytes:
    return b"".join(
        [
            *(header(each, content=b"pass") for each in names),
            *(header(each, kind=tarfile.DIRTYPE) for each in folders),
            END,
        ]
    )


FOUND_BEFORE: dict[str, bytes] = {
    "a negative size": pax(record("size", "-1")),
    "a time that is not a number": pax(record("mtime", "nan")),
    "a time without end": pax(record("mtime", "1e400")),
    "a length of 400 digits": pax(b"9" * 400 + b" path=x\n"),
    "3,000 long names": header("n", kind=tarfile.GNUTYPE_LONGNAME, content=b"x\0") * 3000 + files("t.py"),
    "a negative size in binary": with_size_field(b"\xff" * 11 + b"\xf0"),
    "a file and a folder": files("a", "a/b"),
    "a folder and a file": files("a/b", "a"),
    "a program that is a folder and a file": files("t.py", folders=("t.py",)),
    "a file named .": files("."),
    "a file without a name": files(""),
    "a file named ./": pax(record("path", "./")),
    "a name of 256 bytes": pax(record("path", "x" * 256)),
    "500 folders": pax(record("path", "a/" * 400 + "t.py")),
    "a header of a gigabyte": with_size_field(b"\x80" + (1 << 30).to_bytes(11, "big")),
    "an extended header of a gigabyte": header("p", kind=tarfile.XHDTYPE, size=1 << 30),
    "a sparse file": header("t.py", kind=tarfile.GNUTYPE_SPARSE),
}  # fmt: skip
"""Each ended in a 500, or took more than it may."""

_KEYS = ("size", "mtime", "path", "linkpath", "uid", "gid", "uname", "charset", "hdrcharset", "GNU.sparse.map",
         "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.numblocks", "comment", "")  # fmt: skip
_VALUES = ("", "-1", "nan", "inf", "-inf", "1e400", "9" * 400, "0x10", "1" * 30, "..", "../t.py", "/etc/passwd", "\0",
           "\udcff", "a\nb", "1,2,3", "-1,-1", "./", ".", "x" * 5000, "binary", "t.py/", "t.py")  # fmt: skip
_KINDS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
          tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE, tarfile.SYMTYPE, tarfile.LNKTYPE,
          tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"?")  # fmt: skip


def hostile_tarballs(count: int, seed: int = 0) -> Iterator[bytes]:
    """So many, the same for a seed; those that were found before come first."""
    chosen = random.Random(seed)
    known = list(FOUND_BEFORE.values())
    for index in range(count):
        content = known[index] if index < len(known) else _drawn(chosen)
        yield gzip.compress(content, 1) if chosen.random() < 0.3 else content


def _drawn(chosen: random.Random) -> bytes:
    parts = []
    for _ in range(chosen.randint(1, 6)):
        kind = chosen.choice(_KINDS)
        value = chosen.choice(_VALUES)
        if kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            made = record(chosen.choice(_KEYS), value)
            content = made if chosen.random() < 0.7 else str(chosen.choice([0, 5, 10**30])).encode() + made
        else:
            content = value.encode("utf-8", "surrogateescape")
        size = chosen.choice([0, 0, 0, 1, 10**6, 8**10])
        parts.append(header(_name(chosen), kind=kind, size=size, content=content))
    written = bytearray(b"".join(parts) + chosen.choice([END, b"", b"\xff" * 100]))
    for _ in range(chosen.choice([0, 0, 1, 3])):
        written[chosen.randrange(len(written))] = chosen.choice([0, 0x20, 0x30, 0x39, 0x80, 0xFF])
    return bytes(written)


def _name(chosen: random.Random) -> str:
    return chosen.choice(["t.py", "t.py/a", "a", "a/b", "a/b/c", ".", "./", "", "..", "/a", "x" * 90, "a//b", "\udcff"])


def packed(contents: dict[str, bytes]) -> bytes:
    """A tarball as tar packs it."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as tar:
        for name, content in contents.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return found.getvalue()
