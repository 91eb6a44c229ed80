"""`python -m runtime.seeds --config FILE --seed URI`: installs a seed and ends. The one step that `--seed` of an instance, and of
`penstock start`, takes before anything runs.

FILE is an instance's configuration (`runtime.instance`). Exit status as there: 0 done (or done before), 1 the brokers or the seed are in
the way, 2 wrong configuration or topology, 3 the state directory cannot be used. What was done, or what is in the way, is
said on stdout; how far it is, on stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from runtime import logs
from runtime.errors import StreamsError
from runtime.instance import EXIT_CLEAN, EXIT_FAILED, INTERRUPTED, InstanceSettings, add_seed_options, exit_status, seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.seeds", description="Installs a seed for an application that is stopped.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of one instance: the files come to its state directory")
    add_seed_options(parser, required=True)
    options = parser.parse_args(arguments)
    try:
        settings = InstanceSettings.read(options.config)
        logs.configure(Path(settings.log_path) if settings.log_path else None, fields={"application": settings.application})
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
