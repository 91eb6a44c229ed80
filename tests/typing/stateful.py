"""Types of windows, sessions, cogroups and joins: read by mypy and pyright (`make types`), never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

import msgspec

from penstock import (
    CogroupedKStream,
    Consumed,
    EmitStrategy,
    Grouped,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    SessionWindowedKStream,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindowedKStream,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
    serdes,
)


class Flight(msgspec.Struct, frozen=True):
    carrier: str
    delay: float


class Airline(msgspec.Struct, frozen=True):
    name: str
    country: int


class Country(msgspec.Struct, frozen=True):
    name: str


HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FLIGHT, AIRLINE, COUNTRY = serdes.json(Flight), serdes.json(Airline), serdes.json(Country)
builder = StreamsBuilder()
flights = builder.stream("flights", Consumed(serdes.STRING, value=FLIGHT))
landings = builder.stream("landings", Consumed(serdes.STRING, value=serdes.DOUBLE))
airlines = builder.table("airlines", Consumed(serdes.STRING, value=AIRLINE))
countries = builder.table("countries", Consumed(serdes.INTEGER, value=COUNTRY))
by_carrier = flights.group_by(lambda key, flight: flight.carrier, Grouped(serdes.STRING))


def windows() -> None:
    assert_type(by_carrier, KGroupedStream[str, Flight])
    assert_type(by_carrier.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)), TimeWindowedKStream[str, Flight])
    assert_type(by_carrier.windowed_by(UnlimitedWindows.of()), TimeWindowedKStream[str, Flight])
    assert_type(by_carrier.windowed_by(SlidingWindows.of_time_difference_with_no_grace(HOUR)), TimeWindowedKStream[str, Flight])
    sessions = by_carrier.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(HOUR))
    assert_type(sessions, SessionWindowedKStream[str, Flight])
    assert_type(sessions.count(), KTable[Windowed[str], int])
    assert_type(sessions.emit_strategy(EmitStrategy.on_window_close()), SessionWindowedKStream[str, Flight])
    summed = sessions.aggregate(
        lambda: 0.0,
        lambda key, flight, total: total + flight.delay,
        lambda key, left, right: left + right,
        Materialized("delays", value=serdes.DOUBLE),
    )
    assert_type(summed, KTable[Windowed[str], float])
    hourly = by_carrier.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).count()
    closed = hourly.suppress(Suppressed.until_window_closes(Suppressed.BufferConfig.unbounded()))
    assert_type(closed, KTable[Windowed[str], int])
    sessions.reduce(lambda left, right: 1)  # type: ignore[arg-type, return-value]


def cogroups() -> None:
    def add_flight(carrier: str, flight: Flight, total: float) -> float:
        return total + flight.delay

    def add_landing(carrier: str, landing: float, total: float) -> float:
        return total + landing

    both = by_carrier.cogroup(add_flight).cogroup(landings.group_by_key(), add_landing)
    assert_type(both, CogroupedKStream[str, float])
    assert_type(both.aggregate(lambda: 0.0), KTable[str, float])
    assert_type(both.windowed_by(TimeWindows.of_size_with_no_grace(HOUR)).aggregate(lambda: 0.0), KTable[Windowed[str], float])


def joins_of_streams() -> None:
    near = JoinWindows.of_time_difference_with_no_grace(MINUTE)
    assert_type(flights.join(landings, lambda flight, landing: flight.delay + landing, near), KStream[str, float])
    assert_type(flights.join(landings, lambda key, flight, landing: key, near, StreamJoined(serdes.STRING)), KStream[str, str])
    assert_type(flights.left_join(landings, lambda flight, landing: landing, near), KStream[str, float | None])
    assert_type(
        flights.outer_join(landings, lambda flight, landing: (flight, landing), near), KStream[str, tuple[Flight | None, float | None]]
    )
    flights.outer_join(landings, lambda flight, landing: flight.delay, near)  # type: ignore[union-attr]


def joins_of_tables() -> None:
    counts = by_carrier.count()
    assert_type(airlines.join(counts, lambda airline, count: (airline.name, count)), KTable[str, tuple[str, int]])
    assert_type(airlines.left_join(counts, lambda airline, count: count), KTable[str, int | None])
    assert_type(airlines.outer_join(counts, lambda airline, count: airline), KTable[str, Airline | None])
    joined = airlines.join(countries, lambda airline: airline.country, lambda airline, country: country.name, "by-country")
    assert_type(joined, KTable[str, str])
    assert_type(
        airlines.left_join(countries, lambda code, airline: len(code), lambda airline, country: country), KTable[str, Country | None]
    )
    airlines.join(countries, lambda airline, country: country)  # type: ignore[arg-type]
