"""Ctrl-C passes through code of the application that is called on the main thread; whatever else such code raises is its failure."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock import serdes
from penstock.runtime.dsl.builder import StreamsBuilder
from penstock.runtime.dsl.options import Consumed, Produced
from penstock.runtime.model.errors import DeserializationError, ProcessingError, ProductionError, TopologyError
from penstock.runtime.model.user_errors import is_ctrl_c
from penstock.runtime.serdes.serde import PlainSerde, Serde
from penstock.runtime.topology.factory import build_topology
from penstock.testing import TopologyTestDriver

EXITS = [SystemExit(0), GeneratorExit(), asyncio.CancelledError(), KeyboardInterrupt()]


def raising(error: BaseException) -> Callable[[object], object]:
    def fail(_value: object) -> object:
        raise error

    return fail


def pipe(place: str, error: BaseException) -> None:
    """A record through a driver, whose code raises in one place."""
    fail, text = raising(error), serdes.STRING
    failing: Serde[str] = PlainSerde("failing", fail, fail, immutable=True)  # type: ignore[arg-type]  # it returns nothing
    builder = StreamsBuilder()
    stream = builder.stream("in", Consumed(text, value=failing if place == "read" else text))
    stream.map_values(lambda value: str(fail(value)) if place == "operate" else value).to(
        "out", Produced(text, value=failing if place == "write" else text)
    )
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", text, text).pipe_input("a", "1")


FAILURES = {"read": DeserializationError, "operate": ProcessingError, "write": ProductionError}


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", FAILURES)
def test_whatever_code_of_the_application_raises_is_its_failure(place: str, error: BaseException) -> None:
    caught: list[BaseException] = []

    def run() -> None:
        with pytest.raises(FAILURES[place]) as raised:
            pipe(place, error)
        caught.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "in-0@0" in str(caught[0])
    assert type(error).__name__ in str(caught[0])


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """As in a program that sets no handler of its own; another test of this process may have set one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("place", FAILURES)
def test_ctrl_c_passes_on_the_main_thread(place: str) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        pipe(place, KeyboardInterrupt())
    assert raised.value.__notes__, "says where it arrived"


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_with_a_signal_handler_of_its_own_a_program_gets_no_interrupts() -> None:
    """As in instances and in workers that are processes."""
    assert is_ctrl_c(KeyboardInterrupt())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert not is_ctrl_c(KeyboardInterrupt())


def raises_it() -> None:
    """A factory of a topology."""
    raise KeyboardInterrupt


def is_interrupted() -> None:
    """A factory during which Ctrl-C is pressed."""
    signal.raise_signal(signal.SIGINT)


def sets_its_own() -> None:
    """A factory that handles signals itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_an_interrupt_that_a_factory_raises_itself_is_its_failure() -> None:
    with pytest.raises(TopologyError, match="raises_it' raised KeyboardInterrupt"):
        build_topology(f"{__name__}:raises_it")
    with pytest.raises(KeyboardInterrupt):
        build_topology(f"{__name__}:is_interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(TopologyError, match="returned NoneType"):
        build_topology(f"{__name__}:sets_its_own")
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
