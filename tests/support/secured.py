"""A broker with TLS on every listener, logins by password, token and certificate, and an authorizer that allows what an ACL allows only."""

from __future__ import annotations

import subprocess
from pathlib import Path

from penstock.orchestration.embedded import ports
from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.runtime.kafka.connection import Connection
from tests.support.issuer import AUDIENCE, Issuer

ADMIN = "admin"
"""Super user that logs in with a password."""
ROTATED = "rotated"
"""Another one, whose password a test changes."""
BROKER = "broker"
"""Common name of the broker's certificate: a super user, too."""

_PROPERTIES = """
listeners=SASL_SSL://{host}:{port},SSL://{host}:{certificate_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=SASL_SSL://{host}:{port},SSL://{host}:{certificate_port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL
inter.broker.listener.name=SSL
sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config={oauth}.OAuthBearerLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class={oauth}.OAuthBearerValidatorCallbackHandler
listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url={keys_url}
sasl.oauthbearer.expected.audience={audience}
ssl.keystore.type=PEM
ssl.keystore.location={folder}/{broker}.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/authority.crt
listener.name.ssl.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:CN={broker};User:{admin};User:CN={admin};User:{rotated}
"""


class SecuredBroker(EmbeddedBroker):
    """Broker with a listener for SCRAM-SHA-512 and OAUTHBEARER (`port`) and one for certificates (`certificate_port`). `passwords` by user,
    who has the same at the `issuer`."""

    def __init__(self, data_dir: Path, port: int, certificate_port: int, passwords: dict[str, str], issuer: Issuer) -> None:
        super().__init__(data_dir, port)
        self.certificate_port = certificate_port
        self.passwords = passwords
        self.issuer = issuer
        self.certificates = self.data_dir / "certificates"

    @property
    def connection(self) -> Connection:
        """As the administrator."""
        return self.by_password(ADMIN)

    def by_password(self, user: str) -> Connection:
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": self.passwords[user]}
        return Connection(self.bootstrap_servers, {"security.protocol": "SASL_SSL", **self._authority, **login})

    def by_token(self, user: str) -> Connection:
        login = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.issuer.token_url,
            "https.ca.location": str(self.issuer.authority),
            "sasl.oauthbearer.client.id": user,
            "sasl.oauthbearer.client.secret": self.passwords[user],
        }
        return Connection(self.bootstrap_servers, {"security.protocol": "SASL_SSL", **self._authority, **login})

    def by_certificate(self, name: str) -> Connection:
        """Makes the certificate, if there is none."""
        self._certify(name)
        files = {
            "ssl.certificate.location": str(self.certificates / f"{name}.crt"),
            "ssl.key.location": str(self.certificates / f"{name}.key"),
        }
        return Connection(f"{ports.LOOPBACK}:{self.certificate_port}", {"security.protocol": "SSL", **self._authority, **files})

    @property
    def _authority(self) -> dict[str, str]:
        return {"ssl.ca.location": str(self.certificates / "authority.crt")}

    def _write_properties(self) -> None:
        super()._write_properties()
        if not self.certificates.exists():
            self.certificates.mkdir()
            subject = ("-subj", "/CN=authority", "-days", "30")
            self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", "authority.key", "-out", "authority.crt")
        self._certify(BROKER)
        path = self.data_dir / "server.properties"
        text = path.read_text()
        controller = next(line for line in text.splitlines() if line.startswith("controller.quorum.voters=")).rpartition(":")[2]
        more = _PROPERTIES.format(
            host=ports.LOOPBACK,
            port=self.port,
            certificate_port=self.certificate_port,
            controller_port=controller,
            folder=self.certificates,
            broker=BROKER,
            admin=ADMIN,
            rotated=ROTATED,
            oauth="org.apache.kafka.common.security.oauthbearer",
            keys_url=self.issuer.keys_url,
            audience=AUDIENCE,
        )
        path.write_text(text + more)  # the last of equal names counts

    def _java(self, classes: str) -> list[str]:
        java, *arguments = super()._java(classes)
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.issuer.keys_url}", *arguments]

    def _format_options(self) -> list[str]:
        scram = [f"SCRAM-SHA-512=[name={user},password={password}]" for user, password in self.passwords.items()]
        return [part for each in scram for part in ("--add-scram", each)]

    def _certify(self, name: str) -> None:
        """Make `<name>.key`, `<name>.crt`, and `<name>.pem` with both, signed by the authority."""
        if (self.certificates / f"{name}.pem").exists():
            return
        extensions = self.certificates / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:{ports.LOOPBACK},DNS:localhost\n")
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed_by = ("-CA", "authority.crt", "-CAkey", "authority.key", "-CAcreateserial", "-days", "30", "-extfile", extensions.name)
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.crt")
        both = [(self.certificates / f"{name}.{kind}").read_text() for kind in ("key", "crt")]
        (self.certificates / f"{name}.pem").write_text("".join(both))

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.certificates, check=True, stdin=subprocess.DEVNULL, capture_output=True)
