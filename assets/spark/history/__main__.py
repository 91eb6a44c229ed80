"""`python -m penstock.assets.spark.history REQUEST`: the process of `penstock backfill`."""

import sys

import typer

from penstock.assets.spark.history.command import main

try:
    main(sys.argv[1])
except typer.Exit as end:  # its message is printed
    sys.exit(end.exit_code)
