"""The process of an instance, whichever command line has started it: logging, an optional seed, and the client until its end."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.client.running import EXIT_CLEAN, EXIT_FAILED, log_refusal, received_signals
from penstock.runtime.config.environment import BUILD
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.instance.build import build_of, keep_code
from penstock.runtime.instance.seed import INTERRUPTED, seed
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.kafka.first_contact import FirstContact
from penstock.runtime.model import logs
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsConfigError, StreamsError, TopologyError
from penstock.runtime.seeds.find import find_seed

logger = logging.getLogger(__name__)


def run_instance(
    settings: InstanceSettings, logging_to: logs.Output, where: str | None = None, *, reset_offsets: bool = False, build: str = ""
) -> int:
    """Configure logging, install the seed or snapshot at `where` if it is given, run the instance until a signal or an error stops it, and
    return the exit status (`KafkaStreams.run`). `build`: the fingerprint of the code, where it was imported earlier: its files may have
    changed since."""
    fields = {"application": settings.application, **({"instance": settings.instance} if settings.instance else {})}
    logs.configure(Path(settings.log_path) if settings.log_path else None, fields=fields, output=logging_to)
    logger.info("instance %s starts, process %d", settings.instance or f"of {settings.application}", os.getpid())
    if where is not None and (status := _seeded(settings, where, reset_offsets)) is not None:
        return status
    try:
        streams = KafkaStreams(settings.factory, settings.streams_config(), log_path=settings.log_path)
    except (StreamsConfigError, TopologyError) as error:
        return log_refusal(error)
    except KeyboardInterrupt:  # a KeyboardInterrupt of the factory is a TopologyError
        logger.error("interrupted before the start")
        return EXIT_FAILED
    os.environ[BUILD] = found = build or build_of(settings.config, settings.factory)  # for this process and its workers'
    if (state := settings.config.get("state.dir")) is not None:  # an instance of a project, which may be rehearsed
        keep_code(Path(str(state)) / settings.application, found)
    return streams.run()


def _seeded(settings: InstanceSettings, where: str, reset: bool) -> int | None:
    """Install the seed. Returns None if the instance may run, otherwise the exit status."""
    try:
        config = StreamsConfig(settings.streams_config())
        find_seed(where, config.application_id)  # its errors need no broker
        while _broker_answers(config):
            try:
                logger.info("%s", seed(settings, where, reset=reset))
                return None
            except BrokerUnavailableError as error:
                logger.warning("%s; the seed waits for a broker, and continues from where it is", error)
    except StreamsError as error:
        return log_refusal(error)
    except KeyboardInterrupt:
        logger.error(INTERRUPTED)
        return EXIT_FAILED
    logger.info("stopped before a broker has answered: the seed is not installed; start again")
    return EXIT_CLEAN


def _broker_answers(config: StreamsConfig) -> bool:
    """Wait for a broker. Returns False if a signal has come first. Raises StreamsConfigError if the brokers reject this client."""
    stopped: list[int] = []
    with received_signals(stopped.append):
        try:
            FirstContact(config, lambda: bool(stopped)).wait()
        except BrokerUnavailableError:
            return False
    return not stopped
