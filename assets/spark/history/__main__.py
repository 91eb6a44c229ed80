"""`python -m penstock.assets.spark.history REQUEST`: the process of `penstock backfill`.

Importing Spark takes seconds. Ctrl-C meanwhile ends the process at once, without a traceback from an import.
"""

import signal
import sys


def run() -> None:
    """Run the command."""
    python = signal.getsignal(signal.SIGINT)
    if python is signal.default_int_handler:  # not if the caller ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import typer

    from penstock.assets.spark.history.command import main

    signal.signal(signal.SIGINT, python)
    try:
        main(sys.argv[1])
    except typer.Exit as end:  # its message is printed
        sys.exit(end.exit_code)


if __name__ == "__main__":
    run()
