"""The principal that brokers see of a login, as `User:NAME`, as far as this machine can know it.

With a password it is the user. With a certificate it is the subject, as Java writes it (RFC 2253), unless the brokers have
`ssl.principal.mapping.rules`. With a token it is the claim `sub`, unless they have `sasl.oauthbearer.sub.claim.name`.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path

from penstock.orchestration.declarations.applications import Application
from penstock.runtime.config.streams_config import Property
from penstock.runtime.kafka.connection import Connection

UNKNOWN = "User:PRINCIPAL"
"""In commands for a principal that is not known."""
_SECONDS = 5.0
_OAUTH = "sasl.oauthbearer."
_KEYWORDS = {
    bytes([0x55, 4, 3]): "CN",
    bytes([0x55, 4, 6]): "C",
    bytes([0x55, 4, 7]): "L",
    bytes([0x55, 4, 8]): "ST",
    bytes([0x55, 4, 9]): "STREET",
    bytes([0x55, 4, 10]): "O",
    bytes([0x55, 4, 11]): "OU",
    bytes.fromhex("0992268993f22c640101"): "UID",
    bytes.fromhex("0992268993f22c640119"): "DC",
}
"""Attributes of a name for which RFC 2253 has a keyword, by their encoded identifier."""
_ENCODINGS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
"""Of texts, by their tag."""
_ESCAPED = ',=+<>#;"\\'
_SEQUENCE = 0x30
_VERSION = 0xA0


def principal(application: Application, connection: Connection) -> tuple[str, str]:
    """Return the principal of an application's login, a name from the environment as its template, and an empty text; or `UNKNOWN` and
    where to find the principal."""
    settings = connection.settings
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    if protocol == "ssl":
        return _of_certificate(settings)
    if not protocol.startswith("sasl_"):
        return "User:ANONYMOUS", ""
    mechanism = str(settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))).upper()
    if mechanism == "OAUTHBEARER":
        return _of_token(settings)
    if "sasl.username" in settings:
        return f"User:{application.config.get('admin.sasl.username', application.config.get('sasl.username'))}", ""
    return UNKNOWN, "the principal of a Kerberos ticket is its first part, unless the brokers have sasl.kerberos.principal.to.local.rules"


def _of_certificate(settings: Mapping[str, Property]) -> tuple[str, str]:
    try:
        pem = str(settings["ssl.certificate.pem"]) if "ssl.certificate.pem" in settings else None
        text = pem or Path(str(settings["ssl.certificate.location"])).read_text(encoding="ascii")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = f"{begin}{text.partition(begin)[2].partition(end)[0]}{end}"
        return f"User:{subject(ssl.PEM_cert_to_DER_cert(first))}", ""
    except KeyError:
        if "ssl.keystore.location" not in settings:
            return "User:ANONYMOUS", ""
    except (OSError, ValueError, IndexError):
        pass
    command = "`openssl x509 -in client.crt -noout -subject -nameopt RFC2253`"
    return UNKNOWN, f"it is the subject of the client's certificate, which was not read: {command} prints it"


def subject(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, as Java writes it. Raises ValueError or IndexError for other bytes."""
    fields = list(_parts(_content(_content(certificate, _SEQUENCE), _SEQUENCE)))
    if fields[0][0] == _VERSION:
        del fields[0]
    _number, _algorithm, _issuer, _validity, (_, name, _), *_ = fields
    names = ["+".join(_attribute(content) for _, content, _ in _parts(each)) for _, each, _ in _parts(name)]
    return ",".join(reversed(names))


def _content(data: bytes, tag: int) -> bytes:
    found, content, _ = next(_parts(data), (0, b"", b""))
    if found != tag:
        raise ValueError(f"tag {found} instead of {tag}")
    return content


def _parts(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the tag, the content and all bytes of each value of a sequence in DER."""
    at = 0
    while at < len(data):
        tag, length, begin = data[at], data[at + 1], at + 2
        if length & 0x80:
            begin += length & 0x7F
            length = int.from_bytes(data[at + 2 : begin], "big")
        yield tag, data[begin : begin + length], data[at : begin + length]
        at = begin + length


def _attribute(data: bytes) -> str:
    (_, identifier, _), (tag, value, encoded) = _parts(data)
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or tag not in _ENCODINGS:
        return f"{keyword or _dotted(identifier)}=#{encoded.hex()}"
    text = value.decode(_ENCODINGS[tag])
    first, end = len(text) - len(text.lstrip(" ")), len(text.rstrip(" "))
    return f"{keyword}=" + "".join(
        f"\\{one}" if one in _ESCAPED or (one == " " and not first <= at < end) else one for at, one in enumerate(text)
    )


def _dotted(identifier: bytes) -> str:
    """Return an object identifier as numbers with dots."""
    numbers, number = [], 0
    for byte in identifier:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _of_token(settings: Mapping[str, Property]) -> tuple[str, str]:
    """Fetch a token as the clients do, where that is a request with an id and a secret, and return its claim."""
    claim = str(settings.get(f"{_OAUTH}sub.claim.name", "sub"))
    where = f"it is the claim `{claim}` of the token that the issuer gives to this client, unless the brokers name another"
    if str(settings.get(f"{_OAUTH}method", "default")).lower() != "oidc":
        found = dict(part.partition("=")[::2] for part in str(settings.get(f"{_OAUTH}config", "")).split())
        return (f"User:{found['principal']}", "") if "principal" in found else (UNKNOWN, where)
    if str(settings.get(f"{_OAUTH}grant.type", "client_credentials")) != "client_credentials":
        return UNKNOWN, where
    try:
        return f"User:{_claims(_token(settings))[claim]}", ""
    except (OSError, HTTPException, ValueError, KeyError, IndexError, TypeError):  # they may quote the secret
        return UNKNOWN, where


def _token(settings: Mapping[str, Property]) -> str:
    url = str(settings[f"{_OAUTH}token.endpoint.url"])
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(url)
    client, secret = (
        str(settings.get(f"{_OAUTH}client.{name}", settings.get(f"{_OAUTH}client.credentials.client.{name}", "")))
        for name in ("id", "secret")
    )
    form = {"grant_type": "client_credentials", **({"scope": str(settings[f"{_OAUTH}scope"])} if f"{_OAUTH}scope" in settings else {})}
    login = base64.b64encode(f"{client}:{secret}".encode()).decode()
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {login}"})
    pem, place = settings.get("https.ca.pem"), str(settings.get("https.ca.location", ""))
    trusted = ssl.create_default_context(cadata=None if pem is None else str(pem))
    if place not in ("", "probe"):
        trusted.load_verify_locations(**{"capath" if Path(place).is_dir() else "cafile": place})
    with urllib.request.urlopen(request, timeout=_SECONDS, context=trusted) as answer:
        return str(json.load(answer)["access_token"])


def _claims(token: str) -> Mapping[str, object]:
    """Return the claims of a token, which is not verified: the brokers do that."""
    part = token.split(".")[1]
    found: Mapping[str, object] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found
