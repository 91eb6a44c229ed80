"""Installation of a seed without a start: `python -m penstock.runtime.instance.seed --config FILE --seed URI`.

It does what `--seed` of an instance, and of `penstock start`, does before anything runs. FILE is an instance's configuration
(`runtime.instance`). Exit status as there: 0 done (now or before), 1 the brokers or the seed are not ready, 2 wrong configuration or
topology, 3 the state directory cannot be used. The result or the error goes to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.runtime.client.running import EXIT_CLEAN, EXIT_FAILED, exit_status
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.topology.factory import build_topology

if TYPE_CHECKING:
    from penstock.runtime.seeds.install import Installed

INTERRUPTED = "interrupted: the seed is not installed to its end; start again, and it continues from there"


def add_seed_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add `--seed` and its options to a parser."""
    parser.add_argument("--seed", metavar="URI", required=required, help="path or URI of the seed to install (penstock docs seeding)")
    parser.add_argument(
        "--reset-offsets",
        action="store_true",
        help="the application has run and its changelogs were lost: put their tasks back to the seed, state and input offsets",
    )


def seed(settings: InstanceSettings, where: str, *, reset: bool) -> Installed:
    """Install the seed at a path or URI for the instance's application, with a progress bar on a terminal. Raises as `install_seed`, and
    StreamsConfigError and TopologyError."""
    from penstock.runtime.seeds.install import install_seed  # a start without a seed does not need it
    from penstock.runtime.seeds.progress import Progress

    config = StreamsConfig(settings.streams_config())
    topology = build_topology(settings.factory).resolved(config)
    return install_seed(topology, config, where, reset=reset, progress=Progress.on_terminal())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.runtime.instance.seed", description="Installs a seed for an application that is stopped."
    )
    parser.add_argument("--config", type=Path, required=True, help="JSON file of one instance: the files come to its state directory")
    add_seed_options(parser, required=True)
    options = parser.parse_args(arguments)
    try:
        settings, output = InstanceSettings.read(options.config), logs.Output.of()
        logs.configure(Path(settings.log_path) if settings.log_path else None, fields={"application": settings.application}, output=output)
        print(seed(settings, options.seed, reset=options.reset_offsets))
    except StreamsError as error:
        print(error)
        return exit_status(error)
    except KeyboardInterrupt:
        print(INTERRUPTED)
        return EXIT_FAILED
    return EXIT_CLEAN


if __name__ == "__main__":
    sys.exit(main())
