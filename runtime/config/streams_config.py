"""StreamsConfig: the configuration, validated as a whole before anything starts (rules.md, 5).

Known keys are the engine's own (`config_keys`), librdkafka's properties (bare, or with Kafka Streams' prefixes `consumer.`,
`main.consumer.`, `restore.consumer.`, `global.consumer.`, `producer.`, `admin.`), and what a handler or serde in the configuration
declares in its attribute `declares`. Any other key is an error that names the nearest known one, because a misspelt key that is ignored
would be noticed only in production.

Settings that break the engine's guarantees (group, transactions, isolation) are errors too.
"""

from __future__ import annotations

import difflib
import importlib
import ipaddress
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import platformdirs

from penstock.runtime.config import client_tags
from penstock.runtime.config.client_properties import COMMON, CONSUMER, PRODUCER
from penstock.runtime.config.environment import is_from_file
from penstock.runtime.config.keys import AT_LEAST_ONCE, KEYS, ConfigKey, Kind
from penstock.runtime.config.optimizations import optimizations_of
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.ids import HostInfo
from penstock.runtime.model.offsets import AutoOffsetReset
from penstock.runtime.model.secrets import FromEnvironment, kind, redacted, shown
from penstock.runtime.serdes.serde import Serde

logger = logging.getLogger(__name__)

Property = str | int | float | bool

_CONSUMER_PREFIXES = {
    "main": "main.consumer.",
    "restore": "restore.consumer.",
    "global": "global.consumer.",
    "membership": "main.consumer.",
}
_ADMITS = {
    "main.consumer.": COMMON | CONSUMER,
    "restore.consumer.": COMMON | CONSUMER,
    "global.consumer.": COMMON | CONSUMER,
    "consumer.": COMMON | CONSUMER,
    "producer.": COMMON | PRODUCER,
    "admin.": COMMON,
}
_OURS = {
    "group.id": "the group is application.id",
    "transactional.id": "the engine makes one per worker",
    "enable.auto.commit": "the engine commits",
    "enable.auto.offset.store": "the engine commits",
    "partition.assignment.strategy": "the leader assigns tasks",
    "group.instance.id": "an instance that returns is known by client.id, and its tasks wait for restart.grace.ms",
    "group.protocol": "tasks are assigned by the leader, over the classic protocol",
    "global.consumer.auto.offset.reset": "a global store holds the whole topic, so it is read from the start (KIP-406)",
    "restore.consumer.auto.offset.reset": "a store is restored from the offset that it holds, or from its changelog's start",
    "auto.offset.reset": "the engine applies the policy, which is the setting auto.offset.reset without a prefix",
}
"""Properties that cannot be set, with the reason: for all clients, or with a prefix for one kind."""
_HOME = {
    "default.key.serde": "penstock.runtime.serdes",
    "default.value.serde": "penstock.runtime.serdes",
    "default.timestamp.extractor": "penstock.runtime.model.timestamps",
    "deserialization.exception.handler": "penstock.runtime.model.handlers",
    "processing.exception.handler": "penstock.runtime.model.handlers",
    "production.exception.handler": "penstock.runtime.model.handlers",
    "processor.wrapper.class": "penstock.runtime.operators.wrapper",
    "rocksdb.config.setter": "penstock.runtime.stores.rocks_config",
}
"""Modules in which an object without a dotted path is looked up."""
_TOPIC_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
"""Allowed application ids. They are prefixes of topic names, which Kafka limits to 249 characters, and names of folders."""
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}
"""Hosts to listen on that are not addresses to connect to."""
_LAST_PORT = 65535
_SHARED_WITH_CLIENTS = {"session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"}

_CLIENT_DEFAULTS: Mapping[str, Property] = {
    # A client first connects by bootstrap.servers, then to the broker by its own address. librdkafka delays the second connection by the
    # pause between reconnects, 100 ms, so each new client took 57 ms until its first answer; with 10 ms it takes 18. Pauses double up to
    # reconnect.backoff.max.ms.
    "reconnect.backoff.ms": 10,
}
_CONSUMER_DEFAULTS: Mapping[str, Property] = {
    # After its queue was full, librdkafka waits a second before the next fetch, which slows a fast reader to a tenth of its rate.
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32_768,
    # librdkafka needs some 400 bytes for each record of a fetch, regardless of its queue's limits. With small records, fetches of 4 MiB
    # of each of four partitions took 240 MiB and were not faster. This is Kafka Streams' default too.
    "fetch.message.max.bytes": 1_048_576,
}
_LOG_DEFAULTS: Mapping[str, Property] = {
    "queued.min.messages": 50_000,  # records of changelogs are small
}
"""Defaults of consumers that restore."""
_PRODUCER_DEFAULTS: Mapping[str, Property] = {
    "partitioner": "murmur2_random",  # as in Java; librdkafka's default chooses other partitions
    "linger.ms": 50,  # a flush does not wait for it; with 5 the broker's load is a third higher (Kafka Streams' default is 100)
    "batch.num.messages": 10_000,
    "batch.size": 524_288,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 131_072,
}
_TRANSACTIONAL_DEFAULTS: Mapping[str, Property] = {
    # With the default of 100 ms, a commit waits that long while the broker still completes the previous one.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 10,
}
_TRANSACTION_TIMEOUT_MS = 10_000
"""Time beyond the commit interval after which the broker aborts a transaction. Consumers wait this long for an open transaction of a dead
worker that is not fenced."""
_LONGEST_TRANSACTION_MS = 900_000
"""The brokers' default of `transaction.max.timeout.ms`."""


class StreamsConfig(Mapping[str, object]):
    """The validated configuration, as a mapping: `config[key]` is the given value or the default.

    Raises StreamsConfigError at construction for an unknown key (naming the nearest), a value of the wrong type or out of range, and
    settings that contradict each other. Durations (`….ms`) may be given as `timedelta`, numbers as their text.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._values: dict[str, object] = {key.name: key.default for key in KEYS.values()}
        self._clients: dict[str, object] = {}
        self._given = dict(settings)
        declared = _declared(settings)
        for name, given in settings.items():
            if not isinstance(name, str):
                raise StreamsConfigError(f"configuration key {name!r} is not a string")
            value = str(given) if isinstance(given, FromEnvironment) else given
            if name in KEYS:
                self._values[name] = _checked(KEYS[name], client_tags.listed(given) if name == client_tags.WHICH else given)
            elif name.startswith(client_tags.PREFIX):
                self._values[name] = value
            elif _is_client_setting(name):
                self._clients[name] = _plain(name, given)
            elif name in declared:
                self._values[name] = value
            else:
                raise StreamsConfigError(_unknown(name, declared))
        for key in KEYS.values():
            if key.required and not self._values[key.name]:
                raise StreamsConfigError(f"{key.name} is missing. {key.doc}")
        try:
            AutoOffsetReset.of(self.text("auto.offset.reset"))
        except ValueError as error:
            raise StreamsConfigError(self._refused("auto.offset.reset", str(error))) from error
        try:
            self.optimizations = optimizations_of(self.text("topology.optimization"))
            """Optimizations of `topology.optimization`."""
        except ValueError as error:
            raise StreamsConfigError(self._refused("topology.optimization", str(error))) from error
        if self._values["commit.interval.ms"] is None:
            self._values["commit.interval.ms"] = 100 if self.exactly_once else 30_000
        self._default_serdes = {key: self._serde(key) for key in ("default.key.serde", "default.value.serde")}
        self._tags = client_tags.client_tags(self._given)
        try:
            self._rack_aware_tags = client_tags.rack_aware_tags(self.text(client_tags.WHICH), self._tags)
        except StreamsConfigError as error:
            raise StreamsConfigError(self._refused(client_tags.WHICH, str(error))) from None
        self._check_pairs()
        self._check_addresses()

    def _check_addresses(self) -> None:
        for address in self.text("bootstrap.servers").split(","):
            port = address.rpartition(":")[2].strip()
            if port.isdecimal() and ":" in address and not 0 < int(port) <= _LAST_PORT:  # the client would take the rest modulo 65536
                raise StreamsConfigError(self._refused("bootstrap.servers", f"{port} is not a port: choose one from 1 to {_LAST_PORT}"))
        try:
            _ = self.application_server
        except ValueError as error:
            raise StreamsConfigError(self._refused("application.server", str(error))) from error
        if self.integer("http.port") > _LAST_PORT:
            raise StreamsConfigError(
                f"http.port = {self._shown('http.port')} is not a port: choose one from 1 to {_LAST_PORT}, or 0 for no endpoint"
            )
        host = self.text("http.host")
        if self.integer("http.port") and not _is_loopback(host) and self.http_token is None:
            raise StreamsConfigError(
                f"http.host = {self._shown('http.host')} lets other machines read the stores: set http.token, which they must show, "
                "or leave http.host at 127.0.0.1"
            )

    def _check_pairs(self) -> None:
        if not _TOPIC_PREFIX.fullmatch(self.application_id):
            raise StreamsConfigError(
                f"application.id = {self._shown('application.id')} must have 1 to 150 characters of a-z, A-Z, 0-9, '.', '_' and '-': "
                "names of topics begin with it"
            )
        if self.integer("heartbeat.interval.ms") >= self.integer("session.timeout.ms"):
            raise StreamsConfigError(
                f"heartbeat.interval.ms ({self['heartbeat.interval.ms']}) must be shorter than session.timeout.ms "
                f"({self['session.timeout.ms']}); "
                "a third of it is usual"
            )
        if self["rack.aware.assignment.strategy"] != "none" and not self.client_rack:
            raise StreamsConfigError(
                f"rack.aware.assignment.strategy = {self._shown('rack.aware.assignment.strategy')} needs client.rack, "
                "the rack of this instance"
            )
        timeout = self.producer_properties().get("transaction.timeout.ms")
        if self.exactly_once and int(str(timeout)) <= self.integer("commit.interval.ms"):
            raise StreamsConfigError(
                f"transaction.timeout.ms ({timeout}) must be longer than commit.interval.ms ({self['commit.interval.ms']}): "
                "the broker would end each transaction before it is committed"
            )
        for name, value in self._clients.items():
            bare = _without_prefix(name)
            if reason := _OURS.get(name, _OURS.get(bare)):
                raise StreamsConfigError(f"{name} cannot be set: {reason}")
            text = str(value).lower()
            weaker_acks = bare in {"acks", "request.required.acks"} and text not in {"all", "-1"}
            if weaker_acks and "enable.idempotence" not in _turned_off(self._clients):
                raise StreamsConfigError(f"{name} = {self._shown(name)} is not possible: the producer is idempotent, which needs acks=all")
            if self.exactly_once and ((bare, text) in {("isolation.level", "read_uncommitted"), ("enable.idempotence", "false")}):
                raise StreamsConfigError(
                    f"{name} = {self._shown(name)} contradicts processing.guarantee = {self._shown('processing.guarantee')}"
                )

    def with_time_for_calls(self, turn_ms: int) -> StreamsConfig:
        """Return the configuration of an application whose tasks may wait `turn_ms` for calls within a transaction. Its default of
        `transaction.timeout.ms` is long enough for that; a given one stays, and a warning is logged if it is not."""
        if turn_ms > (longest_ms := self.integer("max.poll.interval.ms")):
            logger.warning(
                "calls of map_async may hold up a task for %d ms, twice their timeout; after max.poll.interval.ms (%d) the process is "
                "ended. Set it above %d, or a shorter timeout of the calls",
                *(turn_ms, longest_ms, turn_ms),
            )
        if not turn_ms or not self.exactly_once:
            return self
        timeout_ms = int(str(self.producer_properties()["transaction.timeout.ms"]))
        open_ms = self.integer("commit.interval.ms") + turn_ms
        if any(_without_prefix(name) == "transaction.timeout.ms" for name in self._clients):
            if timeout_ms <= open_ms:
                logger.warning(
                    "calls of map_async may keep a transaction open for %d ms, which is longer than transaction.timeout.ms (%d): the "
                    "broker aborts it then, and its records are processed again, perhaps forever. Set it above %d, or a shorter timeout "
                    "of the calls",
                    *(open_ms, timeout_ms, open_ms),
                )
            return self
        needed_ms = min(open_ms + _TRANSACTION_TIMEOUT_MS // 2, _LONGEST_TRANSACTION_MS)
        return self if needed_ms <= timeout_ms else StreamsConfig({**self._given, "transaction.timeout.ms": needed_ms})

    def redacted(self, text: str) -> str:
        """Return a message of the Kafka client about these settings, without secrets and values from the environment."""
        return redacted(text, self._given)

    def _shown(self, key: str) -> str:
        """Return the value of a key as messages may show it."""
        return shown(key, self._given.get(key, self[key]))

    def _refused(self, key: str, reason: str) -> str:
        """Return the message for a refused value. `reason` may quote the value."""
        quoted = isinstance(self._given.get(key), FromEnvironment)
        return f"{key} = {self._shown(key)}: {'this value is not possible' if quoted else reason}"

    # -- a mapping -------------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> object:
        return self._values[key] if key in self._values else self._clients[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._clients

    def __len__(self) -> int:
        return len(self._values) + len(self._clients)

    def integer(self, key: str) -> int:
        """Return the value of an integer key."""
        value = self[key]
        assert isinstance(value, int), key
        return value

    def text(self, key: str) -> str:
        """Return the value of a string key that is set or has a default."""
        return str(self[key])

    # -- typed properties --------------------------------------------------------------------------------------------------------

    @property
    def application_id(self) -> str:
        return self.text("application.id")

    @property
    def client_id(self) -> str | None:
        """The instance's name, if it is configured."""
        value = self["client.id"]
        return None if value is None else str(value)

    @property
    def client_tags(self) -> Mapping[str, str]:
        """`client.tag.*`, by name of the tag."""
        return self._tags

    @property
    def rack_aware_tags(self) -> tuple[str, ...]:
        """`rack.aware.assignment.tags`."""
        return self._rack_aware_tags

    @property
    def client_rack(self) -> str:
        """`client.rack` of the main consumer, or ""."""
        return str(self.consumer_properties("main").get("client.rack", ""))

    @property
    def exactly_once(self) -> bool:
        return self["processing.guarantee"] != AT_LEAST_ONCE

    @property
    def state_dir(self) -> Path:
        """`state.dir`, or by default a folder below the user's data folder."""
        value = self["state.dir"]
        return Path(str(value)) if value else Path(platformdirs.user_data_dir("penstock")) / "state"

    @property
    def metrics_port(self) -> int:
        return self.integer("metrics.port")

    @property
    def application_server(self) -> HostInfo | None:
        """Address under which other instances find this one: as configured, else that of the HTTP endpoint, unless it listens on all
        addresses of the machine."""
        value = self["application.server"]
        if value is not None:
            return HostInfo.build_from_endpoint(str(value))
        port, host = self.integer("http.port"), self.text("http.host")
        return HostInfo(host, port) if port and host not in _EVERY_ADDRESS else None

    @property
    def http_token(self) -> str | None:
        """Token that requests to the HTTP endpoint must have, if one is set."""
        value = self["http.token"]
        return str(value) if value else None

    @property
    def default_key_serde(self) -> Serde | None:
        return self._default_serdes["default.key.serde"]

    @property
    def default_value_serde(self) -> Serde | None:
        return self._default_serdes["default.value.serde"]

    def _serde(self, key: str) -> Serde | None:
        setting = self[key]
        if setting is None or isinstance(setting, Serde):
            return setting
        found = _imported(key, setting, _HOME[key]) if isinstance(setting, str) else setting
        if not isinstance(found, Serde):
            raise StreamsConfigError(f"{key} = {self._shown(key)} is not a Serde; for example penstock.serdes.STRING")
        return found

    # -- clients -----------------------------------------------------------------------------------------------------------------

    def consumer_properties(self, role: str) -> dict[str, Property]:
        """Return the librdkafka properties of the consumer `main`, `restore`, `global` or `membership`.

        In increasing precedence: the engine's defaults, settings without a prefix, those with `consumer.`, those with the role's prefix.
        """
        properties = {**_CONSUMER_DEFAULTS, "isolation.level": "read_committed"}
        if role in ("restore", "global"):
            # No group is joined, but the client asks for the coordinator of the one that it must name.
            properties.update({**_LOG_DEFAULTS, "group.id": f"{self.application_id}-{role}"})
        if role == "membership":
            properties = {name: self.integer(name) for name in sorted(_SHARED_WITH_CLIENTS)}
        return self._client(properties, COMMON | CONSUMER, ("consumer.", _CONSUMER_PREFIXES[role]))

    def producer_properties(self) -> dict[str, Property]:
        """Return the librdkafka properties of the worker's producer, without the transactional id."""
        properties = {**_PRODUCER_DEFAULTS, "enable.idempotence": True}
        if self.exactly_once:  # a transaction is open from the first output after a commit to the next commit
            timeout_ms = _TRANSACTION_TIMEOUT_MS + max(0, self.integer("commit.interval.ms") - _TRANSACTION_TIMEOUT_MS // 2)
            properties = {**properties, **_TRANSACTIONAL_DEFAULTS, "transaction.timeout.ms": timeout_ms}
        return self._client(properties, COMMON | PRODUCER, ("producer.",))

    def admin_properties(self) -> dict[str, Property]:
        """Return the librdkafka properties of admin clients."""
        return self._client({}, COMMON, ("admin.",))

    def _client(self, defaults: Mapping[str, Property], admitted: frozenset[str], prefixes: tuple[str, ...]) -> dict[str, Property]:
        properties: dict[str, Property] = {"bootstrap.servers": self.text("bootstrap.servers"), **_CLIENT_DEFAULTS, **defaults}
        if self.client_id is not None:
            properties["client.id"] = self.client_id
        bare = {name: value for name, value in self._clients.items() if name in admitted}
        for settings in (bare, *(self._prefixed(prefix) for prefix in prefixes)):
            properties.update(settings)  # type: ignore[arg-type]  # `_plain` has checked them
        return properties

    def _prefixed(self, prefix: str) -> dict[str, object]:
        return {name.removeprefix(prefix): value for name, value in self._clients.items() if name.startswith(prefix)}


def _is_loopback(host: str) -> bool:
    """Return True for an address, or the name `localhost`, that other machines cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _declared(settings: Mapping[str, object]) -> set[str]:
    """Return the keys that handlers, extractors and serdes in the configuration declare."""
    names: set[str] = set()
    for key, value in settings.items():
        if key in KEYS and KEYS[key].kind is Kind.OBJECT and value is not None:
            found = _imported(key, value, _HOME[key]) if isinstance(value, str) else value
            names.update(str(name) for name in getattr(found, "declares", ()))
    return names


def _imported(key: str, path: str, default_module: str) -> object:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(importlib.import_module(module or default_module), name)
    except (ImportError, AttributeError) as error:
        reason = "" if isinstance(path, FromEnvironment) else f": {error}"
        raise StreamsConfigError(f"{key} = {shown(key, path)} cannot be imported{reason}") from error
    return found


def _turned_off(clients: Mapping[str, object]) -> set[str]:
    """Return the client settings that are off."""
    return {_without_prefix(name) for name, value in clients.items() if str(value).lower() == "false"}


def _without_prefix(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in _ADMITS if name.startswith(prefix)), name)


def _is_client_setting(name: str) -> bool:
    for prefix, admitted in _ADMITS.items():
        if name.startswith(prefix):
            return name.removeprefix(prefix) in admitted
    return name in COMMON | CONSUMER | PRODUCER


def _unknown(name: str, declared: set[str]) -> str:
    prefix = next((prefix for prefix in _ADMITS if name.startswith(prefix)), "")
    known = [prefix + each for each in _ADMITS[prefix]] if prefix else [*KEYS, *declared, *COMMON, *CONSUMER, *PRODUCER]
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.4)
    return f"unknown configuration key {name!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else "")


def _checked(key: ConfigKey, value: object) -> object:
    """Return the value in the key's type. Raises StreamsConfigError, saying what is allowed, for an invalid one."""
    if value is None:
        return key.default
    if key.kind is Kind.OBJECT:
        return str(value) if isinstance(value, FromEnvironment) else value
    if key.kind is Kind.STRING:
        if type(value) is bool and "true" in key.choices:
            return str(value).lower()
        if key.name == "dsl.store.format" and str(value).upper() in key.choices:
            return str(value).upper()  # Kafka Streams takes it in any case
        if not isinstance(value, str | Path | AutoOffsetReset):
            raise StreamsConfigError(f"{key.name} = {shown(key.name, value)} must be {key.kind.value}. {key.doc}")
        if key.choices and value not in key.choices:
            raise StreamsConfigError(f"{key.name} = {shown(key.name, value)} must be one of {', '.join(key.choices)}. {key.doc}")
        return str(value)
    number = _integer(value)
    if number is None:
        raise StreamsConfigError(f"{key.name} = {shown(key.name, value)} must be {key.kind.value}. {key.doc}")
    if key.minimum is not None and number < key.minimum:
        raise StreamsConfigError(f"{key.name} = {shown(key.name, value)} must be at least {key.minimum}. {key.doc}")
    return number


def _integer(value: object) -> int | None:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    return None


def _plain(name: str, value: object) -> Property:
    if isinstance(value, str | int | float | bool):
        return str(value) if isinstance(value, str) and not is_from_file(value) else value
    raise StreamsConfigError(f"{name} must be a string, a number or a boolean, not {kind(value)}: it is a setting of the Kafka client")
