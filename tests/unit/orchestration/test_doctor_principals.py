"""The principal that `penstock doctor` names in its commands, for each kind of login."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.doctor.principal import UNKNOWN, principal, subject
from penstock.runtime.kafka.connection import Connection
from tests.support.issuer import Issuer

SUBJECT = '/C=DE/ST=Bü/O=Acme, Inc. #1/OU=a=b+UID=u1/DC=x/CN= shop  "q" /emailAddress=a@b.c'
AS_JAVA_WRITES_IT = r"1.2.840.113549.1.9.1=#16056140622e63,CN=\ shop  \"q\"\ ,DC=x,OU=a\=b+UID=u1,O=Acme\, Inc. \#1,ST=Bü,C=DE"
"""Of `X500Principal.getName()` in Java 17, which is what brokers take for the principal."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-utf8", "-multivalue-rdn", "-days", "3", "-subj", SUBJECT)
    subprocess.run(["openssl", *made, "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    return folder / "crt"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with Issuer(tmp_path_factory.mktemp("issuer"), {"shop": "a secret"}, 60) as found:
        yield found


def said(**settings: str) -> tuple[str, str]:
    parsed = Applications.parse(
        '[applications.shop]\nfactory = "a:b"\ninstances = 1\n[applications.shop.config]\n"bootstrap.servers" = "k:1"\n', Path("x")
    )
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return principal(parsed.named("shop"), Connection("k:1", given))


def test_the_subject_of_a_certificate_is_written_as_java_writes_it(certificate: Path) -> None:
    assert subject(ssl.PEM_cert_to_DER_cert(certificate.read_text())) == AS_JAVA_WRITES_IT
    assert said(security_protocol="SSL", ssl_certificate_location=str(certificate)) == (f"User:{AS_JAVA_WRITES_IT}", "")
    assert said(security_protocol="SSL", ssl_certificate_pem=certificate.read_text()) == (f"User:{AS_JAVA_WRITES_IT}", "")


@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----", "ü"])
def test_a_certificate_that_cannot_be_read_leaves_the_principal_to_the_user(content: str, tmp_path: Path) -> None:
    (tmp_path / "crt").write_text(content)
    name, where = said(security_protocol="ssl", ssl_certificate_location=str(tmp_path / "crt"))
    assert name == UNKNOWN and "openssl x509" in where
    name, where = said(security_protocol="ssl", ssl_keystore_location="/somewhere.p12")
    assert name == UNKNOWN and "openssl x509" in where


def test_without_a_login_clients_are_anonymous() -> None:
    assert said() == ("User:ANONYMOUS", "")
    assert said(security_protocol="SSL") == ("User:ANONYMOUS", "")


def test_the_principal_of_a_token_is_its_claim(issuer: Issuer) -> None:
    login = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_method": "oidc",
        "sasl_oauthbearer_token_endpoint_url": issuer.token_url,
        "sasl_oauthbearer_client_id": "shop",
        "sasl_oauthbearer_client_secret": "a secret",
        "https_ca_location": str(issuer.authority),
    }
    assert said(**login) == ("User:shop", "")
    unnamed = {name: value for name, value in login.items() if name != "https_ca_location"}
    assert said(**unnamed, https_ca_pem=issuer.authority.read_text()) == ("User:shop", "")
    for wrong in (
        unnamed,
        {**login, "sasl_oauthbearer_client_secret": "another"},
        {**login, "sasl_oauthbearer_token_endpoint_url": "file:///etc/hostname"},
        {**login, "sasl_oauthbearer_grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
        {**login, "sasl_oauthbearer_method": "default"},
    ):
        name, where = said(**wrong)
        assert name == UNKNOWN and "claim `sub`" in where and "secret" not in where
    unsecured = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_config": "principal=me scope=x"}
    assert said(**unsecured) == ("User:me", "")
