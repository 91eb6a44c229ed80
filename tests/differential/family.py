"""One family of operators, written twice: a method in java/*.java and a function here. Random input, equal output.

    def tumbling_count(builder: StreamsBuilder) -> None: ...            Windows.tumblingCount(StreamsBuilder builder)
    FAMILIES = [Family("Windows", tumbling_count)]
    test_as_java = as_java(FAMILIES)

The function takes a `StreamsBuilder` or a `Topology`, as its annotation says; so does the method. Its topics are `in` and `out` unless
the family says otherwise. What it writes to any topic but internal ones is compared step by step: bytes of key and value, timestamp,
headers, and the order within a topic; also the number of dropped records, and whether something was raised. Keys are few, so that they
meet; times move on, stand still and go back. What differs is made small and shown step by step. (Rejected: Hypothesis. Its reports drown
in its own words, and a run of the JVM is too slow for the hundreds that it wants.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from random import Random, randrange
from typing import Any, TypeAlias, get_type_hints

import pytest

from penstock import StreamsBuilder, StreamsConfig, Topology, serdes
from penstock.runtime.model.metrics import TASK
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver
from tests.differential.java_streams import JavaStreams, Outcome, Output

INPUTS = int(os.environ.get("PENSTOCK_DIFFERENTIAL_INPUTS", "0"))
"""Above 0: as many inputs per family, others in each run. Else a few, the same in each run."""
_FEW = 4
_FEWEST_STEPS, _MOST_STEPS = 10, 60
_APPLICATION = "topology-test"
_CONFIG = {"application.id": _APPLICATION, "bootstrap.servers": "localhost:9092"}
_STRINGS = (serdes.STRING, serdes.STRING)

Pair: TypeAlias = "tuple[Serde[Any], Serde[Any]]"
Headers = tuple[tuple[str, bytes], ...]
_HEADERS: Sequence[Headers] = ((), (("h", b"1"),), (("h", b"2"), ("i", b"")))


@dataclass(frozen=True)
class Piped:
    """A record that comes in."""

    topic: str
    key: object
    value: object
    timestamp: int
    headers: Headers = ()

    def __repr__(self) -> str:
        more = f" headers={self.headers}" if self.headers else ""
        return f"{self.topic}: {self.key!r} = {self.value!r} @{self.timestamp}{more}"


@dataclass(frozen=True)
class Advanced:
    """The wall clock moves on."""

    ms: int

    def __repr__(self) -> str:
        return f"wall clock +{self.ms}"


Step = Piped | Advanced


@dataclass(frozen=True)
class Family:
    """`java`: the class with the method of the function's name, in camel case.

    `serdes`: of topics that are not strings to strings, to write input and to show output. `ahead` and `behind`: how far (ms) a record
    is at most after and before the latest one. `wall`: the most that the wall clock moves in one step; 0: it stands still.
    `config` is given to both sides as it is.
    """

    java: str
    build: Callable[..., None]
    topics: Sequence[str] = ("in",)
    keys: Sequence[object] = ("a", "b", "c")
    values: Sequence[object] = ("1", "2", "3", "4")
    serdes: Mapping[str, Pair] = field(default_factory=dict)
    null_keys: bool = True
    null_values: bool = True
    headers: bool = True
    ahead: int = 10
    behind: int = 25
    wall: int = 0
    config: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    """Of the case, where one function is used in several."""

    def __str__(self) -> str:
        return f"{self.java}.{self.name or self.build.__name__}"

    @property
    def java_method(self) -> str:
        first, *others = self.build.__name__.split("_")
        return f"{self.java}.{first}{''.join(word.capitalize() for word in others)}"

    def topology(self, config: Mapping[str, object]) -> Topology:
        """Our side of it."""
        (wanted, *_) = get_type_hints(self.build).values()
        if wanted is Topology:
            topology = Topology()
            self.build(topology)
            return topology
        builder = StreamsBuilder()
        self.build(builder)
        return builder.build(StreamsConfig(config))

    def steps(self, random: Random) -> list[Step]:
        """Random input."""
        keys, values = [*self.keys, *_null(self.null_keys)], [*self.values, *_null(self.null_values)]
        latest, found = 0, list[Step]()
        for _ in range(random.randint(_FEWEST_STEPS, _MOST_STEPS)):
            if self.wall and random.random() < 0.2:
                found.append(Advanced(random.randint(1, self.wall)))
                continue
            ahead = random.random() < 0.5
            move = random.randint(0, self.ahead) if ahead else random.randint(-self.behind, self.ahead)
            latest = max(latest, latest + move)
            headers = random.choice(_HEADERS) if self.headers else ()
            value = random.choice(values)
            found.append(Piped(random.choice(self.topics), random.choice(keys), value, max(0, latest + min(move, 0)), headers))
        return found

    def simpler(self, step: Step) -> Iterator[Step]:
        """Steps to be tried in the place of this one."""
        if isinstance(step, Advanced):
            yield Advanced(1)
            return
        yield replace(step, headers=())
        yield replace(step, key=self.keys[0])
        yield replace(step, value=self.values[0])
        for time in (0, step.timestamp // 10 * 10, step.timestamp - 1):
            yield replace(step, timestamp=max(0, time))

    def _serdes(self, topic: str) -> Pair:
        return self.serdes.get(topic, _STRINGS)

    def raw(self, step: Step) -> list[object]:
        """A step as Reference.java takes it."""
        if isinstance(step, Advanced):
            return [step.ms]
        key, value = (
            None if data is None else (serde.serializer(step.topic)(data) or b"").decode("latin-1")
            for serde, data in zip(self._serdes(step.topic), (step.key, step.value), strict=True)
        )
        return [step.topic, key, value, step.timestamp, [[name, data.decode("latin-1")] for name, data in step.headers]]

    def shown(self, output: Output) -> str:
        """An output for people."""
        topic, raw_key, raw_value, timestamp, headers = output
        key, value = (
            None if data is None else serde.deserializer(topic)(data)
            for serde, data in zip(self._serdes(topic), (raw_key, raw_value), strict=True)
        )
        return f"{topic}: {key!r} = {value!r} @{timestamp}{f' headers={headers}' if headers else ''}"

    def ours(self, steps: Sequence[Step]) -> Outcome:
        """Return Penstock's results, in the form of `JavaStreams.run`."""
        config = {**_CONFIG, "default.key.serde": serdes.STRING, "default.value.serde": serdes.STRING, **self.config}
        found: list[list[Output]] = []
        try:
            with TopologyTestDriver(self.topology(config), config, 0) as driver:
                for step in steps:
                    if isinstance(step, Advanced):
                        driver.advance_wall_clock_time(step.ms)
                    else:
                        topic = driver.create_input_topic(step.topic, *self._serdes(step.topic))
                        topic.pipe_input(step.key, step.value, step.timestamp, headers=list(step.headers))
                    found.append(_written(driver))
                counted = (value for name, value in driver.metrics().items() if name.name == "dropped-records-total" and name.group == TASK)
                return found, int(sum(counted)), None
        except Exception as error:  # noqa: BLE001 (whatever it is, Java's may be another one)
            return found, None, f"{type(error).__name__}: {error}"


def _null(wanted: bool) -> list[None]:
    return [None] if wanted else []


def _written(driver: TopologyTestDriver) -> list[Output]:
    """Return the records written since the last call, topics in the order of their names, without internal ones."""
    found: list[Output] = []
    for name in sorted(driver.produced_topic_names()):
        if not name.startswith(f"{_APPLICATION}-"):
            for record in driver.create_output_topic(name, serdes.BYTES, serdes.BYTES).read_records_to_list():
                found.append((name, record.key, record.value, record.timestamp, tuple(record.headers or ())))
    return found


@dataclass(frozen=True)
class Comparison:
    """Results of both for the same input."""

    family: Family
    steps: Sequence[Step]
    ours: Outcome
    theirs: Outcome

    @property
    def equal(self) -> bool:
        """Same outputs, same count of dropped records, and both or none raised."""
        (ours, dropped, error), (theirs, their_dropped, their_error) = self.ours, self.theirs
        return ours == theirs and dropped == their_dropped and (error is None) == (their_error is None)

    def __str__(self) -> str:
        story = _story(self.family, self.steps, self.ours[0], self.theirs[0])
        end = f"dropped: ours {self.ours[1]}, Java's {self.theirs[1]}\nraised: ours {self.ours[2]}\n  Java's {_short(self.theirs[2])}"
        return f"{self.family}:\n{story}{end}"


def _short(trace: str | None) -> str | None:
    """A stack trace without the stack."""
    return trace if trace is None else " / ".join(line for line in trace.splitlines() if not line.startswith("\t"))


def compare(family: Family, java: JavaStreams, steps: Sequence[Step]) -> Comparison:
    """Runs the steps through both."""
    theirs = java.run(family.java_method, family.config, [family.raw(step) for step in steps])
    return Comparison(family, steps, family.ours(steps), theirs)


def smallest(found: Comparison, again: Callable[[Sequence[Step]], Comparison]) -> Comparison:
    """Leaves out steps, and makes others simpler, as long as the outcomes differ."""

    def tried(steps: Sequence[Step]) -> bool:
        nonlocal found
        candidate = again(steps)
        if not candidate.equal:
            found = candidate
        return not candidate.equal

    size = len(found.steps)
    while size := size // 2:
        at = 0
        while at < len(found.steps):
            at += 0 if tried([*found.steps[:at], *found.steps[at + size :]]) else size
    for at, step in enumerate(found.steps):
        for simpler in found.family.simpler(step):
            if simpler != found.steps[at]:
                tried([*found.steps[:at], simpler, *found.steps[at + 1 :]])
    return found


def check(family: Family, java: JavaStreams) -> None:
    """Runs the family on random input through both. Fails with a small input on which they differ."""
    first = randrange(1 << 30) if INPUTS else 0
    for seed in range(first, first + (INPUTS or _FEW)):
        found = compare(family, java, family.steps(Random(seed)))
        if not found.equal:
            pytest.fail(str(smallest(found, lambda steps: compare(family, java, steps))), pytrace=False)


def _story(family: Family, steps: Sequence[Step], ours: Sequence[Sequence[Output]], theirs: Sequence[Sequence[Output]]) -> str:
    lines = []
    for step, mine, other in zip_longest(steps, ours, theirs, fillvalue=()):
        lines.append(f"{step}")
        if list(mine) == list(other):
            lines += [f"    both  {family.shown(output)}" for output in mine]
            continue
        lines += [f"    ours  {family.shown(output)}" for output in mine] or ["    ours  nothing"]
        lines += [f"    Java  {family.shown(output)}" for output in other] or ["    Java  nothing"]
    return "".join(f"{line}\n" for line in lines)


def as_java(families: Sequence[Family]) -> Callable[[Family, JavaStreams], None]:
    """The test of a file of families."""

    @pytest.mark.parametrize("family", families, ids=str)
    def test_as_java(family: Family, java: JavaStreams) -> None:
        check(family, java)

    return test_as_java
