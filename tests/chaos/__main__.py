"""`python -m tests.chaos`: as many kills, or events in the life of a fleet, as are asked for, drawn by a seed that is printed first."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port
from tests.chaos.cluster import BROKERS, ClusterChaos, Round
from tests.chaos.fleet import MOST, FleetChaos
from tests.chaos.rounds import KILLS, Chaos
from tests.support.brokers import QuickBroker
from tests.support.network import TwoSidedCluster

TEXT = """
rounds  one instance is killed at chosen instants of the engine's work, or the broker below it. After each kill every store is held
        against its changelog, and the next start must continue from there.
fleet   two to six instances under a steady load join, leave, restart, are killed and frozen. At the end each output must have come
        once, every store must be as its changelog says, and the longest gaps in the output are printed by cause.
cluster three instances with a standby on three brokers, which are restarted, killed, frozen, cut off and emptied, a round each.

examples:
  make chaos                                            20 kills
  make chaos ARGS='rounds --seed 7 --rounds 50'         the same 50 kills each time
  make chaos ARGS='fleet --events 60'                   about ten minutes
  make chaos ARGS='fleet --seed 7 --standbys 1'         a copy of each task is kept
  make chaos ARGS='fleet --workers 2'                   two worker processes each, which are killed too

Logs and states stay in the folder that is printed first. Status 0 if all that must be true is; otherwise what is not is raised.
"""


def main() -> int:
    """Status 0 if all that must be true is; otherwise what is not is raised, and the folder with the logs stays."""
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description="Breaks an application again and again under load, and looks at what is left.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("rounds", "fleet", "cluster"), default="rounds", help="default: rounds")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="the same seed gives the same events")
    parser.add_argument("--rounds", type=int, default=20, help="rounds: how many kills (default 20)")
    parser.add_argument("--events", type=int, default=30, help="fleet: how many events (default 30)")
    parser.add_argument("--standbys", type=int, default=0, help="fleet: copies of each task (num.standby.replicas, default 0)")
    parser.add_argument("--workers", type=int, default=1, help="fleet: worker processes of each instance (num.stream.threads, default 1)")
    parser.add_argument("--instances", type=int, default=MOST, help=f"fleet: how many at most (default {MOST})")
    names = [each.name.lower() for each in Round]
    parser.add_argument("--only", nargs="*", choices=names, help=f"cluster: these rounds, of {', '.join(names)}")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"{options.what}: seed {options.seed}, in {folder}", flush=True)
    if options.what == "cluster":
        _cluster(options, folder)
        return 0
    embedded = QuickBroker(folder / "broker", free_port())
    embedded.start()
    try:
        (_fleet if options.what == "fleet" else _rounds)(options, embedded, folder)
    finally:
        embedded.stop()
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _rounds(options: argparse.Namespace, embedded: EmbeddedBroker, folder: Path) -> None:
    dice = random.Random(options.seed)
    kills: list[str] = []
    while len(kills) < options.rounds:
        kills += dice.sample(KILLS, len(KILLS))
    Chaos(embedded, folder, "chaos", options.seed, _say).run(kills[: options.rounds])


def _fleet(options: argparse.Namespace, embedded: EmbeddedBroker, folder: Path) -> None:
    settings = {"standbys": options.standbys, "workers": options.workers, "most": options.instances}
    FleetChaos(embedded, folder, "chaos", options.seed, _say, **settings).run(options.events)


def _cluster(options: argparse.Namespace, folder: Path) -> None:
    rounds = [each for each in Round if not options.only or each.name.lower() in options.only]
    with TwoSidedCluster(folder / "brokers", [free_port() for _ in range(BROKERS)]) as cluster:
        ClusterChaos(cluster, folder, "chaos", options.seed, _say).run(rounds)


if __name__ == "__main__":
    sys.exit(main())
