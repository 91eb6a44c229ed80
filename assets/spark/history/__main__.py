"""`python -m penstock.assets.spark.history REQUEST`: the process of `penstock backfill`."""

import sys

from penstock.assets.spark.history.command import main

main(sys.argv[1])
