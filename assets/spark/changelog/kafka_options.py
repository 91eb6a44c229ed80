"""Conversion of an application's client settings to those of Spark's Kafka connector.

An application is configured for librdkafka. The connector runs the Java client, which has other names for the same settings: one JAAS
line instead of a user and a password, PEM as text instead of paths. Files are read here, on the driver, so the executors of a cluster
need no copies. A setting that the Java client does not have is refused by name: ignoring it silently would be worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StreamsConfigError

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_AS_THEY_ARE = ("client.rack", "client.dns.lookup", "ssl.key.password", "sasl.kerberos.service.name", "fetch.max.bytes")
"""Settings with the same name and meaning in both clients."""
_FETCH = {"max.partition.fetch.bytes": str(8 << 20), "max.poll.records": "5000"}
"""For throughput; the defaults of the Java client are meant for consumers of single records."""


def connector_options(config: StreamsConfig) -> dict[str, str]:
    """Return the options `kafka.…` for `spark.read.format("kafka")`: the settings with which the application restores its stores.

    Raises StreamsConfigError for a setting that the Java client does not have, or a file that cannot be read.
    """
    given = {name: str(value) for name, value in config.consumer_properties("restore").items()}
    options = {"bootstrap.servers": given["bootstrap.servers"], "isolation.level": "read_committed", **_FETCH}
    options |= {name: given[name] for name in _AS_THEY_ARE if name in given}
    protocol = given.get("security.protocol", "plaintext").upper()
    if protocol != "PLAINTEXT":
        options["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        options |= _sasl(given)
    if protocol.endswith("SSL"):
        options |= _ssl(given)
    return {f"kafka.{name}": value for name, value in options.items()}


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism in _MODULES:
        credentials = {"username": _required(given, "sasl.username"), "password": _required(given, "sasl.password")}
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(_MODULES[mechanism], credentials)}
    if mechanism == "GSSAPI":
        ticket = {"useKeyTab": "true", "storeKey": "true", "keyTab": _required(given, "sasl.kerberos.keytab")}
        credentials = {**ticket, "principal": _required(given, "sasl.kerberos.principal")}
        return {"sasl.mechanism": mechanism, "sasl.kerberos.service.name": "kafka", "sasl.jaas.config": _jaas(_KERBEROS, credentials)}
    if mechanism == "OAUTHBEARER" and given.get("sasl.oauthbearer.method") == "oidc":
        credentials = {
            "clientId": _required(given, "sasl.oauthbearer.client.id"),
            "clientSecret": _required(given, "sasl.oauthbearer.client.secret"),
        }
        if scope := given.get("sasl.oauthbearer.scope"):
            credentials["scope"] = scope
        if (authority := _pem(given, "https.ca.location", "https.ca.pem")) is not None:  # of the issuer
            credentials |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
        return {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", credentials),
            "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": _required(given, "sasl.oauthbearer.token.endpoint.url"),
        }
    known = ", ".join((*_MODULES, "GSSAPI (with a keytab)", "OAUTHBEARER (oidc)"))
    raise StreamsConfigError(f"sasl.mechanism = {mechanism}: Spark's Kafka connector supports {known}")


def _jaas(module: str, options: Mapping[str, str]) -> str:
    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    return f"{module} required {' '.join(f'{name}={quoted(value)}' for name, value in options.items())};"


def _ssl(given: Mapping[str, str]) -> dict[str, str]:
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise StreamsConfigError(
            "enable.ssl.certificate.verification = false: Java's client, which Spark reads Kafka with, always verifies. Name the "
            "authority of the brokers' certificates: ssl.ca.location"
        )
    options: dict[str, str] = {}
    if (authority := _pem(given, "ssl.ca.location", "ssl.ca.pem")) is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    certificate = _pem(given, "ssl.certificate.location", "ssl.certificate.pem")
    key = _pem(given, "ssl.key.location", "ssl.key.pem")
    if certificate is not None and key is not None:
        if "BEGIN RSA PRIVATE KEY" in key or "BEGIN EC PRIVATE KEY" in key:
            raise StreamsConfigError(
                "ssl.key.location: Java's client, which Spark reads Kafka with, wants the key as PKCS#8: openssl pkcs8 -topk8 -in key"
            )
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    elif "ssl.keystore.location" in given:  # librdkafka accepts only PKCS#12 here
        options |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": given["ssl.keystore.location"]}
        options["ssl.keystore.password"] = given.get("ssl.keystore.password", "")
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    return options


def _pem(given: Mapping[str, str], path: str, text: str) -> str | None:
    """Return PEM given as a file or as text; None if neither is set."""
    if given.get(text):
        return given[text]
    if not given.get(path) or given[path] == "probe":
        return None
    try:
        return Path(given[path]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StreamsConfigError(f"{path} = {given[path]} cannot be read as PEM: {error}") from error


def _required(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise StreamsConfigError(f"{name} is missing: the mechanism needs it")
    return given[name]
