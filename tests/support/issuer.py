"""A small issuer of tokens for OAUTHBEARER (OIDC): clients log in with their id and secret, brokers fetch the key that proves a token."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from penstock.orchestration.embedded.ports import LOOPBACK

AUDIENCE = "kafka"
_KEY = "issuer"


class Issuer:
    """Serves `token_url` by HTTPS and `keys_url`, which brokers read, by HTTP, on loopback while it is open. `secrets` by client;
    `lifetime_s`: of a token, in seconds. `issued` counts the tokens of each client. Its files are in `folder`; `authority`: the certificate
    that signed its own, which no machine knows."""

    def __init__(self, folder: Path, secrets: dict[str, str], lifetime_s: int) -> None:
        self.issued: dict[str, int] = {}
        self._key, self._secrets, self._lifetime_s = folder / "issuer.key", secrets, lifetime_s
        self._openssl("genrsa", "-out", str(self._key), "2048")
        modulus = self._openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().partition("=")[2]
        public = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY, "n": _encoded(bytes.fromhex(modulus)), "e": "AQAB"}
        self.keys = json.dumps({"keys": [public]}).encode()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, issuer.keys)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                token = issuer.token(self.headers.get("Authorization", ""))
                answer = {"error": "invalid_client"} if token is None else {"access_token": token, "token_type": "Bearer"}
                self._answer(401 if token is None else 200, json.dumps(answer).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self.authority = folder / "issuer.crt"
        certificate, subject = str(self.authority), ("-subj", "/CN=issuer", "-addext", f"subjectAltName=IP:{LOOPBACK}")
        self._openssl("req", "-x509", "-key", str(self._key), "-days", "30", *subject, "-out", certificate)
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(certificate, str(self._key))
        self._servers = [ThreadingHTTPServer((LOOPBACK, 0), Handler) for _ in range(2)]
        plain, secured = self._servers
        secured.socket = trust.wrap_socket(secured.socket, server_side=True)
        self._url, self._secured_url = f"http://{LOOPBACK}:{plain.server_port}", f"https://{LOOPBACK}:{secured.server_port}"
        for each in self._servers:
            threading.Thread(target=each.serve_forever, daemon=True).start()

    @property
    def token_url(self) -> str:
        return f"{self._secured_url}/token"

    @property
    def keys_url(self) -> str:
        return f"{self._url}/keys"

    def token(self, authorization: str) -> str | None:
        """Return a token for the client that an `Authorization: Basic` header names; None if its secret is wrong."""
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self._secrets.get(client) != secret:
            return None
        self.issued[client] = self.issued.get(client, 0) + 1
        now = int(time.time())
        claims = {"iss": self._url, "sub": client, "aud": AUDIENCE, "iat": now, "exp": now + self._lifetime_s, "scope": "kafka"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT", "kid": _KEY}, claims))
        return f"{signed}.{_encoded(self._openssl('dgst', '-sha256', '-sign', str(self._key), given=signed.encode()))}"

    @staticmethod
    def _openssl(*arguments: str, given: bytes = b"") -> bytes:
        return subprocess.run(["openssl", *arguments], check=True, input=given, capture_output=True).stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._servers:
            each.shutdown()
            each.server_close()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
