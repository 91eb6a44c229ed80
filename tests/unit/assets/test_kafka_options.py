"""Translation of an application's client settings into options of Spark's Kafka connector."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.assets.spark.changelog.kafka_options import connector_options
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.errors import StreamsConfigError


def options(**given: str) -> dict[str, str]:
    settings = {name.replace("_", "."): value for name, value in given.items()}
    return connector_options(StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092", **settings}))


def test_without_security_there_are_the_brokers_and_committed_records_alone() -> None:
    found = options()
    assert found["kafka.bootstrap.servers"] == "broker:9092"
    assert found["kafka.isolation.level"] == "read_committed"
    assert not any("ssl" in name or "sasl" in name or "security" in name for name in found)


def test_a_user_and_a_password_become_one_line_and_quotes_in_it_stay_quotes() -> None:
    found = options(security_protocol="sasl_plaintext", sasl_mechanism="SCRAM-SHA-512", sasl_username="ann", sasl_password='a"b\\c')
    assert found["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    line = found["kafka.sasl.jaas.config"]
    assert line.startswith("org.apache.kafka.common.security.scram.ScramLoginModule required ")
    assert line.endswith('username="ann" password="a\\"b\\\\c";')


def test_settings_of_the_restore_consumer_count_as_they_do_for_a_restore() -> None:
    settings = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "all", "sasl.password": "p"}
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "b:1", **settings, "restore.consumer.sasl.username": "reader"})
    assert 'username="reader"' in connector_options(config)["kafka.sasl.jaas.config"]


def test_certificates_travel_as_text_so_that_executors_need_no_files(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----")
    files = {f"ssl_{at}_location": str(tmp_path / name) for at, name in (("ca", "ca"), ("certificate", "cert"), ("key", "key"))}
    found = options(security_protocol="ssl", ssl_key_password="secret", **files)
    assert found["kafka.ssl.truststore.type"] == found["kafka.ssl.keystore.type"] == "PEM"
    assert found["kafka.ssl.truststore.certificates"] == "-----BEGIN ca-----"
    assert found["kafka.ssl.keystore.certificate.chain"] == "-----BEGIN cert-----"
    assert (found["kafka.ssl.keystore.key"], found["kafka.ssl.key.password"]) == ("-----BEGIN key-----", "secret")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN", "sasl_password": "x"}, "sasl.username is missing"),
        ({"security_protocol": "sasl_ssl", "sasl_mechanism": "OAUTHBEARER"}, "sasl.mechanism = OAUTHBEARER"),
        ({"security_protocol": "ssl", "enable_ssl_certificate_verification": "false"}, "always verifies"),
        ({"security_protocol": "ssl", "ssl_ca_location": "/nowhere/ca.pem"}, "ssl.ca.location = /nowhere/ca.pem cannot be read"),
        ({"security_protocol": "ssl", "ssl_certificate_pem": "x", "ssl_key_pem": "-----BEGIN RSA PRIVATE KEY-----"}, "PKCS#8"),
    ],
)
def test_what_javas_client_cannot_do_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(StreamsConfigError, match=message):
        options(**given)
