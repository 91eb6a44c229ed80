"""The command `penstock`, also as `python -m orchestration`.

Loading what the commands need takes a second. Ctrl-C in it ends the process at once, and not with a traceback out of an import.
"""

import signal


def main() -> None:
    """Runs the command line."""
    python = signal.getsignal(signal.SIGINT)
    if python is signal.default_int_handler:  # not where somebody has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from orchestration.cli import app

    signal.signal(signal.SIGINT, python)
    app(prog_name="penstock")


if __name__ == "__main__":
    main()
