"""`python -m benchmarks`: see `benchmarks.run`."""

import typer

from benchmarks.run import main

typer.run(main)
