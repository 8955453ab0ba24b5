"""A CA of a test, and the certificates for 127.0.0.1 that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Authority:
    """A CA, and certificates that it signs."""

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.file.write_bytes(self._pem(_name("the CA of this test"), self.key, authority=True))

    @property
    def file(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.file)

    def issue(self, certificate: Path, key: Path, name: str = "the webhook") -> None:
        """A new key and certificate for 127.0.0.1 in place of these files."""
        made = ec.generate_private_key(ec.SECP256R1())
        private = made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for file, content in ((key, private), (certificate, self._pem(_name(name), made))):
            fresh = file.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(file)

    def _pem(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool = False) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name("the CA of this test"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if not authority:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
