"""Types flow from a topic's serdes to the last callback: read by mypy and pyright (`make types`), never run.

`assert_type` fails where a type is not the one meant; a `type: ignore` that nothing needs is an error too, so each one below stands for a
mistake that the type checkers find.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

import msgspec

from penstock import (
    Branched,
    BranchedKStream,
    Consumed,
    GlobalKTable,
    Grouped,
    Joined,
    KafkaStreams,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    Printed,
    Produced,
    RecordContext,
    Repartitioned,
    StreamsBuilder,
    TimeWindowedKStream,
    TimeWindows,
    Windowed,
    serdes,
)
from penstock.serdes import Serde
from penstock.testing import TopologyTestDriver


class Flight(msgspec.Struct, frozen=True):
    origin: str
    carrier: str
    delay: float | None


@dataclass(frozen=True)
class Airline:
    name: str


class Airport(TypedDict):
    name: str


FLIGHT, AIRLINE, AIRPORT = serdes.json(Flight), serdes.json(Airline), serdes.json(Airport)
HOUR = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
builder = StreamsBuilder()
flights = builder.stream("flights", Consumed(serdes.STRING, value=FLIGHT))


def serdes_know_their_type() -> None:
    assert_type(FLIGHT, Serde[Flight])
    assert_type(AIRPORT, Serde[Airport])
    assert_type(serdes.time_windowed(serdes.STRING, HOUR.size_ms), Serde[Windowed[str]])
    assert_type(serdes.LONG.deserializer("topic")(b""), int)
    assert_type(Serde(lambda topic, headers, data: b"", lambda topic, headers, data: Airline("")), Serde[Airline])


def sources() -> None:
    assert_type(flights, KStream[str, Flight])
    assert_type(builder.stream(re.compile("flights-.*"), Consumed(serdes.STRING, value=FLIGHT)), KStream[str, Flight])
    assert_type(builder.stream(["a", "b"], Consumed(value=FLIGHT)), KStream[Any, Flight])
    assert_type(builder.stream("anything"), KStream[Any, Any])
    assert_type(builder.stream("anything", "by-name"), KStream[Any, Any])
    assert_type(builder.table("airlines", Consumed(serdes.STRING, value=AIRLINE)), KTable[str, Airline])
    assert_type(builder.global_table("airports", Consumed(serdes.STRING, value=AIRPORT)), GlobalKTable[str, Airport])


def serdes_as_keywords() -> None:
    builder = StreamsBuilder()
    short = builder.stream("flights", key=serdes.STRING, value=FLIGHT)
    assert_type(short, KStream[str, Flight])
    assert_type(builder.stream("flights", "by-name", key=serdes.STRING, value=FLIGHT), KStream[str, Flight])
    assert_type(builder.stream(["a", "b"], value=FLIGHT), KStream[Any, Flight])
    assert_type(builder.table("airlines", key=serdes.STRING, value=AIRLINE), KTable[str, Airline])
    assert_type(builder.table("airlines", Materialized("rows"), key=serdes.STRING, value=AIRLINE), KTable[str, Airline])
    assert_type(builder.table("airlines", materialized=Materialized("rows"), key=serdes.STRING, value=AIRLINE), KTable[str, Airline])
    assert_type(builder.table("airlines", materialized="rows", key=serdes.STRING, value=AIRLINE), KTable[str, Airline])
    assert_type(builder.global_table("airports", key=serdes.STRING, value=AIRPORT), GlobalKTable[str, Airport])
    assert_type(builder.global_table("airports", None, "all", key=serdes.STRING, value=AIRPORT), GlobalKTable[str, Airport])
    short.to("copy", key=serdes.STRING, value=FLIGHT)
    short.map_values(lambda flight: flight if flight.delay else None).to("with-tombstones", value=FLIGHT)
    assert_type(short.repartition("again", key=serdes.STRING, value=FLIGHT), KStream[str, Flight])
    by_carrier = short.group_by(lambda key, flight: flight.carrier, key=serdes.STRING)
    assert_type(by_carrier, KGroupedStream[str, Flight])
    assert_type(short.select_key(lambda key, flight: flight.origin or None).group_by_key(key=serdes.STRING), KGroupedStream[str, Flight])
    counts = by_carrier.count("departures")
    assert_type(counts, KTable[str, int])
    total = by_carrier.aggregate(lambda: 0.0, lambda key, flight, total: total + (flight.delay or 0.0), "sum", value=serdes.DOUBLE)
    assert_type(total, KTable[str, float])
    assert_type(counts.group_by(lambda key, count: (count, key), key=serdes.LONG, value=serdes.STRING), KGroupedTable[int, str])
    counts.to_stream().to("counts", key=serdes.STRING, value=serdes.LONG)


def serdes_of_other_types_as_keywords() -> None:
    """The keywords are checked against the stream, as the objects are."""
    by_carrier = flights.group_by_key()
    flights.to("copy", value=serdes.LONG)  # type: ignore[arg-type]
    flights.to("copy", key=serdes.LONG)  # type: ignore[arg-type]
    flights.repartition("again", value=serdes.LONG)  # type: ignore[arg-type]
    flights.group_by(lambda key, flight: flight.carrier, key=serdes.LONG)  # type: ignore[arg-type, return-value]
    flights.group_by_key(value=serdes.LONG)  # type: ignore[arg-type]
    by_carrier.count().to_stream().to("counts", key=serdes.STRING, value=serdes.STRING)  # type: ignore[arg-type]
    by_carrier.aggregate(lambda: 0, lambda key, flight, total: total + 1, "sum", value=serdes.STRING)  # type: ignore[arg-type, operator, return-value]
    builder.stream("flights", key=serdes.STRING, value=Flight)  # type: ignore[arg-type]
    builder.table("airlines", Consumed(serdes.STRING, value=AIRLINE), key=serdes.STRING)  # type: ignore[call-overload]


async def carrier_of(flight: Flight) -> str:
    return flight.carrier


async def key_and_delay(key: str, flight: Flight) -> tuple[str, float | None]:
    return key, flight.delay


def without_state() -> None:
    assert_type(flights.filter(lambda key, flight: flight.delay is not None), KStream[str, Flight])
    assert_type(flights.map_values(lambda flight: flight.carrier), KStream[str, str])
    assert_type(flights.map_values(lambda key, flight: (key, flight.delay)), KStream[str, tuple[str, float | None]])
    assert_type(flights.map(lambda key, flight: (flight.origin, len(key))), KStream[str, int])
    assert_type(flights.flat_map(lambda key, flight: [(len(key), flight)]), KStream[int, Flight])
    assert_type(flights.flat_map_values(lambda flight: [flight.origin]), KStream[str, str])
    assert_type(flights.flat_map_values(lambda key, flight: (len(key),)), KStream[str, int])
    assert_type(flights.select_key(lambda key, flight: len(flight.carrier)), KStream[int, Flight])
    assert_type(flights.peek(lambda key, flight: print(key, flight.origin)), KStream[str, Flight])
    assert_type(flights.merge(builder.stream("more", Consumed(serdes.STRING, value=FLIGHT))), KStream[str, Flight])
    flights.foreach(lambda key, flight: print(flight.carrier))
    flights.print(Printed.to_sys_out(key_value_mapper=lambda key, flight: str(flight)))
    assert_type(flights.map_async(carrier_of), KStream[str, str])
    assert_type(
        flights.map_async(key_and_delay, limit=10, timeout=timedelta(seconds=1), named="delays"), KStream[str, tuple[str, float | None]]
    )
    assert_type(flights.map_batches(lambda found: [flight.delay for flight in found], size=10), KStream[str, float | None])
    flights.map_async(lambda flight: flight.carrier)  # type: ignore[arg-type, return-value]
    flights.map_batches(lambda found: found.delay)  # type: ignore[attr-defined]
    flights.map_values(lambda flight: flight.no_such_field)  # type: ignore[attr-defined]
    flights.filter(lambda flight: True)  # type: ignore[arg-type, misc]


def branches() -> None:
    split = flights.split("by-delay")
    assert_type(split, BranchedKStream[str, Flight])
    late = Branched[str, Flight]("late", function=lambda stream: stream.filter(lambda key, flight: bool(flight.delay)))
    assert_type(split.branch(lambda key, flight: flight.delay is not None, late).default_branch(), dict[str, KStream[str, Flight]])


def topics() -> None:
    def by_carrier(key: str, flight: Flight, context: RecordContext) -> str:
        return f"{flight.carrier}-{context.partition}"

    flights.to("copy", Produced(serdes.STRING, value=FLIGHT, partitioner=lambda topic, key, flight, count: len(flight.origin) % count))
    flights.to(by_carrier)
    flights.to(lambda key, flight: flight.carrier)
    flights.map_values(lambda flight: flight if flight.delay else None).to("with-tombstones", Produced(serdes.STRING, value=FLIGHT))
    assert_type(flights.repartition(Repartitioned("again", value=FLIGHT)), KStream[str, Flight])
    assert_type(flights.to_table(Materialized("rows")), KTable[str, Flight])
    flights.to("copy", Produced(serdes.STRING, value=serdes.LONG))  # type: ignore[arg-type]


def groups() -> None:
    by_carrier = flights.group_by(lambda key, flight: flight.carrier, Grouped(serdes.STRING, value=FLIGHT))
    assert_type(by_carrier, KGroupedStream[str, Flight])
    assert_type(
        flights.select_key(lambda key, flight: flight.origin or None).group_by_key(Grouped(serdes.STRING)), KGroupedStream[str, Flight]
    )
    assert_type(by_carrier.count(), KTable[str, int])
    assert_type(by_carrier.reduce(lambda left, right: max(left, right, key=lambda flight: flight.origin)), KTable[str, Flight])
    assert_type(
        by_carrier.aggregate(
            lambda: 0.0, lambda key, flight, total: total + (flight.delay or 0.0), Materialized("sum", value=serdes.DOUBLE)
        ),
        KTable[str, float],
    )
    windowed = by_carrier.windowed_by(HOUR)
    assert_type(windowed, TimeWindowedKStream[str, Flight])
    assert_type(windowed.count("counts"), KTable[Windowed[str], int])
    assert_type(windowed.count().to_stream(lambda windowed, count: windowed.key), KStream[str, int])
    by_carrier.count().to_stream().to("counts", Produced(serdes.STRING, value=serdes.STRING))  # type: ignore[arg-type]


def tables() -> None:
    airlines = builder.table("airlines-2", Consumed(serdes.STRING, value=AIRLINE))
    assert_type(airlines.filter(lambda code, airline: bool(airline.name)), KTable[str, Airline])
    assert_type(airlines.map_values(lambda airline: len(airline.name)), KTable[str, int])
    assert_type(airlines.map_values(lambda code, airline: code), KTable[str, str])
    assert_type(airlines.to_stream(), KStream[str, Airline])
    grouped = airlines.group_by(lambda code, airline: (len(code), airline))
    assert_type(grouped, KGroupedTable[int, Airline])
    assert_type(grouped.count(), KTable[int, int])


def joins() -> None:
    airlines = builder.table("airlines-3", Consumed(serdes.STRING, value=AIRLINE))
    airports = builder.global_table("airports-3", Consumed(serdes.STRING, value=AIRPORT))
    assert_type(flights.join(airlines, lambda flight, airline: airline.name), KStream[str, str])
    assert_type(
        flights.join(airlines, lambda key, flight, airline: (key, airline), Joined(serdes.STRING)), KStream[str, tuple[str, Airline]]
    )
    assert_type(flights.left_join(airlines, lambda flight, airline: airline.name if airline else None), KStream[str, str | None])
    assert_type(flights.join(airports, lambda key, flight: flight.origin, lambda flight, airport: airport["name"]), KStream[str, str])
    flights.left_join(airlines, lambda flight, airline: airline.name)  # type: ignore[union-attr]


def untyped_is_allowed(stream: KStream, serde: Serde) -> KTable:
    """A program without types gets no errors."""
    stream.to("out", Produced(serde, value=serdes.STRING))
    return stream.map_values(lambda value: value["anything"]).group_by_key().count()


def tables_of_topics() -> None:
    """A store's name, or a `Materialized` with nothing but one, takes no type away."""
    texts = Consumed(serdes.STRING, value=serdes.STRING)
    builder = StreamsBuilder()
    assert_type(builder.table("rows", texts, Materialized("rows")), KTable[str, str])
    assert_type(builder.table("rows", texts, "rows"), KTable[str, str])
    assert_type(builder.table("rows", Materialized("rows", key=serdes.STRING, value=serdes.LONG)), KTable[str, int])
    assert_type(builder.global_table("all", texts, Materialized("all")), GlobalKTable[str, str])


def ends(driver: TopologyTestDriver) -> None:
    """The ends of a topology under test have the types of their serdes."""
    source = driver.create_input_topic("in", serdes.STRING, serdes.LONG)
    source.pipe_input("a", 1)
    source.pipe_input("a", None)
    source.pipe_input(1)
    source.pipe_input("a", "b")  # type: ignore[call-overload]
    result = driver.create_output_topic("out", serdes.time_windowed(serdes.STRING, 10), serdes.LONG)
    assert_type(result.read_key_value(), tuple[Windowed[str], int])
    assert_type(result.read_record().value, int)


def states(streams: KafkaStreams) -> None:
    def listen(new: KafkaStreams.State, old: KafkaStreams.State) -> None:
        print(new is KafkaStreams.State.RUNNING, old)

    streams.set_state_listener(listen)


def deduplicated() -> None:
    keyed = builder.stream("flights", Consumed(serdes.STRING, value=FLIGHT))
    assert_type(keyed.deduplicate(within=timedelta(minutes=1)), KStream[str, Flight])
    assert_type(keyed.deduplicate(within=60_000, store="seen"), KStream[str, Flight])
    assert_type(keyed.deduplicate(lambda key, flight: flight.carrier, 60_000, "seen", repartition=False), KStream[str, Flight])
    keyed.deduplicate(lambda key, flight: flight.carrier, 60_000, Materialized("seen", key=serdes.STRING))
    keyed.deduplicate(lambda key, flight: flight.delay, 60_000, Materialized("seen", key=serdes.STRING))  # type: ignore[arg-type, return-value]  # a float
    keyed.deduplicate(lambda key, flight: flight.carier, 60_000)  # type: ignore[attr-defined]  # misspelt
    keyed.deduplicate()  # type: ignore[call-overload]  # no interval
    assert_type(keyed.group_by_key().count(Materialized("n", ttl=timedelta(hours=1))), KTable[str, int])
