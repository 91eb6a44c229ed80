"""The command `penstock`, also as `python -m penstock.orchestration`.

Importing the commands takes a second. Ctrl-C meanwhile ends the process at once, without a traceback from an import.
"""

import signal


def main() -> None:
    """Run the command line."""
    python = signal.getsignal(signal.SIGINT)
    if python is signal.default_int_handler:  # not if the caller ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.orchestration.cli import app

    signal.signal(signal.SIGINT, python)
    app(prog_name="penstock")


if __name__ == "__main__":
    main()
