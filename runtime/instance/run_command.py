"""`penstock run module:factory`: one instance in the foreground, without a control plane. It needs nothing but the engine.

For containers, systemd and a terminal: configured by options, a file and the environment; logs go to standard error; SIGTERM and Ctrl-C
close the instance. `penstock start` starts instances that `streams.toml` declares; both are the same process afterwards.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from penstock.runtime.client.running import EXIT_CONFIGURATION
from penstock.runtime.config.environment import Value, filled_in, resolved
from penstock.runtime.instance.process import run_instance
from penstock.runtime.instance.seed import add_seed_options
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsConfigError

SUMMARY = "Run one instance of an application in the foreground, from options and the environment: for containers. Needs no streams.toml."
_OPTIONS = {
    "bootstrap.servers": ("--bootstrap-servers", "-b", "PENSTOCK_BOOTSTRAP_SERVERS", "host:port of one or more brokers"),
    "application.id": ("--application-id", "-a", "PENSTOCK_APPLICATION_ID", "the application: its consumer group, topics and state"),
    "client.id": ("--instance", "-i", "PENSTOCK_INSTANCE", "name of this instance, the same after a restart; default: one from state.dir"),
    "state.dir": ("--state-dir", "-s", "PENSTOCK_STATE_DIR", "folder of the local state; keep it on a volume to start without a restore"),
}
_CONFIG = "PENSTOCK_CONFIG"
_NAMES = ("application.id", "client.id")
_EXAMPLES = """
examples:
  penstock run shop.topology:build -a shop -b 127.0.0.1:9092
  penstock run shop.topology:build -a shop -b kafka:9092 --set num.standby.replicas=1 --set commit.interval.ms=500
  penstock run shop.topology:build --config production.toml --set 'sasl.password=${KAFKA_PASSWORD}'

  In a container, everything but the factory may come from the environment:
    ENV PENSTOCK_APPLICATION_ID=shop PENSTOCK_BOOTSTRAP_SERVERS=kafka:9092 PENSTOCK_STATE_DIR=/state
    CMD ["penstock", "run", "shop.topology:build"]

settings:
  Every key (`penstock docs configuration`), from weak to strong: --config FILE, the environment variables above, --set, the options.
  ${NAME} in a value is read from the environment. The file is TOML or JSON:
    "bootstrap.servers" = "kafka:9092"
    "sasl.password" = "${KAFKA_PASSWORD}"

signals:
  SIGTERM or Ctrl-C commits and closes; the tasks stay reserved for the instance's return for restart.grace.ms (60 s; 0: others take
  them over at once). A second one ends the process at once; its uncommitted records are processed again.

exit status:
  0 closed   1 failed while running   2 wrong settings or topology, or they do not fit the state: a restart does not help
  3 state directory not usable        4 user code made no progress for max.poll.interval.ms        130, 143 a second signal
"""


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Run the command. Return the exit status of `KafkaStreams.run`."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options, environment)
        output = logs.Output.of(options.log_format, options.log_level, environment, terminal=sys.stderr.isatty())
    except StreamsConfigError as error:
        print(f"penstock run: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the application is a module of the current folder, or installed
    return run_instance(settings, output, options.seed, reset_offsets=options.reset_offsets)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock run", description=SUMMARY, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("factory", metavar="MODULE:FUNCTION", help="a function without arguments that returns the topology")
    for key, (option, short, variable, text) in _OPTIONS.items():
        parser.add_argument(option, short, dest=key, metavar="TEXT", help=f"{text} [{key}, ${variable}]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeat it for more")
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"a TOML or JSON file of settings [${_CONFIG}]")
    parser.add_argument("--log-file", metavar="FILE", help="append the log to this file; default: standard error")
    parser.add_argument("--log-format", metavar="FORM", help=f"json or text; default: text on a terminal, else json [${logs.FORMAT}]")
    parser.add_argument(
        "--log-level", metavar="LEVELS", help=f"INFO, or levels by logger: WARNING,penstock.runtime.kafka=DEBUG [${logs.LEVEL}]"
    )
    add_seed_options(parser, required=False)
    return parser


def _settings(options: argparse.Namespace, environment: Mapping[str, str]) -> InstanceSettings:
    """Return the settings of the process. Raises StreamsConfigError."""
    path = options.config or (Path(environment[_CONFIG]) if environment.get(_CONFIG) else None)
    config: dict[str, Value] = {} if path is None else _read(path)
    config |= {key: environment[variable] for key, (_, _, variable, _) in _OPTIONS.items() if environment.get(variable)}
    for given in options.set:
        key, found, value = given.partition("=")
        if not found or not key.strip():
            raise StreamsConfigError(f"--set {given}: expected KEY=VALUE, for example --set commit.interval.ms=500")
        config[key.strip()] = value.strip()
    config |= {key: getattr(options, key) for key in _OPTIONS if getattr(options, key) is not None}
    filled = resolved(config, environment=environment)
    for key in ("application.id", "bootstrap.servers"):
        if not filled.get(key):
            option, short, variable, _ = _OPTIONS[key]
            raise StreamsConfigError(f"{key} is missing: give {option} ({short}), or set {variable}; penstock run --help shows all ways")
    log_path = None if options.log_file is None else filled_in(options.log_file, "--log-file", environment)
    return InstanceSettings(
        application=str(filled["application.id"]),
        instance=str(filled.get("client.id", "")),
        factory=options.factory,
        config={key: value for key, value in filled.items() if key not in _NAMES},
        log_path=log_path,
    )


def _read(path: Path) -> dict[str, Value]:
    """Read a file of settings; tables in it are parts of keys. Raises StreamsConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        content: object = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise StreamsConfigError(f"{path}: {error}") from error
    found: dict[str, Value] = {}
    if not isinstance(content, dict):
        raise StreamsConfigError(f"{path}: expected settings by key")
    rest: list[tuple[str, object]] = [("", content)]
    while rest:
        key, value = rest.pop()
        if isinstance(value, dict):
            rest += [(f"{key}.{name}" if key else str(name), inner) for name, inner in value.items()]
        elif isinstance(value, str | int | float | bool):
            found[key] = value
        else:
            raise StreamsConfigError(f"{path}: {key}: expected text, a number, true or false")
    return found


if __name__ == "__main__":
    sys.exit(main())
