"""Fixtures for all tests. `broker` is a real Kafka: started once per run on a free port, or the one that PENSTOCK_TEST_BOOTSTRAP names."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.remote import Producer

from penstock.orchestration.embedded.kafka import EmbeddedBroker
from penstock.orchestration.embedded.ports import free_port
from tests.support import ALL_EXAMPLES, ROOT, Kafka, unique
from tests.support.brokers import LastingBroker, QuickBroker
from tests.support.lanes import Lanes

sys.dont_write_bytecode = (
    False  # containers often set PYTHONDONTWRITEBYTECODE: each process would compile all modules, and rewrite all tests
)
os.environ["COLUMNS"] = "200"  # commands wrap their output to the width of whoever runs the tests; read when they are imported
for name in ("FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(name, None)

# `make nightly` chooses `thorough`. No deadlines: the time of an example measures how busy the machine is.
hypothesis.settings.register_profile("penstock", deadline=None, max_examples=ALL_EXAMPLES // 4)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=ALL_EXAMPLES)
hypothesis.settings.load_profile("penstock")


MEMORY = Path("/dev/shm")
"""Linux's file system in memory."""
ROOM = 2 << 30
"""Bytes that it must have free: several times what the quick tests write."""
SLOW = {ROOT / "tests" / name for name in ("broker", "chaos", "dagster", "differential")}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of the quick tests in memory if there is room: they open thousands of stores, and each waits for the disk.

    Processes that the tests start, and workers of xdist, inherit the choice. `TMPDIR` names another place.
    """
    chosen = [Path(argument.split("::", 1)[0]).resolve() for argument in config.args]
    quick = not any(slow in (path, *path.parents) or path in slow.parents for path in chosen for slow in SLOW)
    if quick and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", str(MEMORY))
        tempfile.tempdir = None  # computed again at the next use


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks each test by the folder that it stands in, where that is the name of a mark."""
    folder = item.path.parent.name
    if folder in ("broker", "chaos", "dagster"):
        item.add_marker(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes what UTF-8 cannot write in captured output: xdist sends it to the main process, and a lone surrogate ended the whole run."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes | None:
    """Spreads the slow tests over three processes; the quick ones are spread by xdist itself."""
    return Lanes(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A real broker for the whole run of the tests. Use names of your own on it (`topic`, `application_id`)."""
    named = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if named:
        yield Kafka(named)
        return
    embedded = LastingBroker(tmp_path_factory.mktemp("broker"), free_port())
    embedded.start()
    try:
        yield Kafka(embedded.bootstrap_servers)
    finally:
        embedded.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop and kill."""
    broker = QuickBroker(tmp_path / "broker", free_port())
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def topic(broker: Kafka) -> Callable[..., str]:
    """Makes topics: `topic("flights", partitions=4, config={"cleanup.policy": "compact"})` gives the new topic's name, `flights-…`."""
    return broker.create_topic


@pytest.fixture
def application_id() -> str:
    """A unique `application.id`."""
    return unique("app")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """An empty folder for `state.dir`."""
    path = tmp_path / "state"
    path.mkdir()
    return path
