"""Reloads a server's TLS certificate when its files change, as cert-manager renews them."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path

from planner.errors import SettingError

_log = logging.getLogger("planner.admission")

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate and its key. `context` is for the listening socket: each handshake looks at the files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises SettingError if there is nothing to begin with."""
        self._files = (certificate, key)
        self._changing = threading.Lock()
        self._said = ""
        try:
            self._stamp = self._look()
            self._newest = self._read()
        except (OSError, ssl.SSLError) as error:
            where = f"{certificate}, {key}"
            raise SettingError(
                f"the certificate cannot be used: {error}", allowed="two files in PEM that belong together", place=where
            ) from None
        self.context = self._read()
        # OpenSSL calls it at every handshake, also of a client that names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self.newest()

    def newest(self) -> ssl.SSLContext:
        """The context of the files as they are now, or of the last that could be used: a torn renewal stops nobody."""
        with self._changing:
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._newest = self._read()
                    self._stamp = stamp
                    _log.info("the certificate was read anew")
                    self._said = ""
            except (OSError, ssl.SSLError) as error:
                if self._said != str(error):
                    _log.warning("the certificate cannot be read anew, the last one serves on: %s", error)
                self._said = str(error)
            return self._newest

    def _look(self) -> _Stamp:
        found = [os.stat(file) for file in self._files]
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        return context
