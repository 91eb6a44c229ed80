"""`python -m penstock.assets.spark.seeds`."""

import typer

from penstock.assets.spark.seeds.command import main

typer.run(main)
