"""The command `penstock`, also as `python -m penstock.orchestration`.

Importing the commands takes a second. Ctrl-C meanwhile ends the process at once, without a traceback from an import. `penstock run` imports
none of them: it needs only the engine.
"""

import logging
import signal
import sys

from penstock.orchestration import MAY_BREAK


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["run"]:
        from penstock.runtime.instance import run_command

        sys.exit(run_command.main(sys.argv[2:]))
    python = signal.getsignal(signal.SIGINT)
    if python is signal.default_int_handler:  # not if the caller ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.orchestration.cli import app
    from penstock.runtime.model import logs
    from penstock.runtime.model.errors import StreamsConfigError

    signal.signal(signal.SIGINT, python)
    try:
        logs.configure(None, output=logs.Output.of(terminal=True, level=logging.WARNING))
    except StreamsConfigError as error:
        sys.exit(f"penstock: {error}")
    arguments = sys.argv[1:]
    if arguments[:1] != ["query"]:  # the keys of a store may contain any character
        arguments = [argument.replace(MAY_BREAK, "") for argument in arguments]
    app(arguments, prog_name="penstock")


if __name__ == "__main__":
    main()
