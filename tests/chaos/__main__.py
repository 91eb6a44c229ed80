"""`python -m tests.chaos`: as many kills as are asked for, at instants and moments drawn by a seed that is told first."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from orchestration.embedded.kafka import EmbeddedBroker
from orchestration.embedded.ports import free_port
from tests.chaos.rounds import KILLS, Chaos


def main() -> int:
    """Status 0 if all that must be true is; otherwise what is not is raised, and the folder with the logs stays."""
    parser = argparse.ArgumentParser(prog="make chaos", description="Kills an application and its broker, and looks at what is left.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="the same seed gives the same kills")
    parser.add_argument("--rounds", type=int, default=20, help="how many kills (default 20)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {options.seed}, {options.rounds} rounds, in {folder}", flush=True)
    dice = random.Random(options.seed)
    kills: list[str] = []
    while len(kills) < options.rounds:
        kills += dice.sample(KILLS, len(KILLS))
    embedded = EmbeddedBroker(folder / "broker", free_port())
    embedded.start()
    try:
        chaos = Chaos(embedded, folder, "chaos", options.seed, lambda text: print(text, flush=True))
        chaos.run(kills[: options.rounds])
    finally:
        embedded.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
