"""The flight board's topology: three queries on one stream of departures.

    flights ─┬─ join airlines ── by carrier ──────────── carriers        ─► flights-per-carrier
             ├─ join airports ── by origin, each hour ── hourly-delay    ─► delay-per-hour
             └─ by origin and hour ── left join weather ─────────────────► flights-with-weather

A year is replayed in minutes, and a task that is paused at a bad record may fall a year behind the others, which send to the same
repartition topics. So the windows wait for a whole year (the grace): on a live stream minutes would do. Results are then the same
whatever order the tasks have run in.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, cast

from penstock import Consumed, Grouped, Joined, Materialized, Produced, StreamsBuilder, TimeWindows, Topology, serdes

Row: TypeAlias = dict[str, object]

FLIGHTS, AIRLINES, AIRPORTS, WEATHER = "flights", "airlines", "airports", "weather"
PER_CARRIER, PER_HOUR, WITH_WEATHER = "flights-per-carrier", "delay-per-hour", "flights-with-weather"
REPARTITIONS = ("by-carrier", "by-origin", "by-origin-and-hour")
"""Names of the repartition topics, without the prefix of the application's name and the suffix `-repartition`."""

HOUR = timedelta(hours=1)
GRACE = timedelta(days=370)
WEATHER_FIELDS = ("temp", "wind_speed", "precip", "visib")
FLIGHT_FIELDS = ("carrier", "flight", "origin", "dest", "time_hour", "dep_delay")


def build() -> Topology:
    """Departures from New York: delays per airport and hour, flights per carrier, and each flight with its weather."""
    builder = StreamsBuilder()
    rows = Consumed(serdes.STRING, value=serdes.JSON)
    flights = builder.stream(FLIGHTS, rows)
    airlines = builder.global_table(AIRLINES, rows, Materialized("airlines"))
    airports = builder.global_table(AIRPORTS, rows, Materialized("airports"))
    weather = builder.table(WEATHER, rows, Materialized("weather"))

    (
        flights.join(airlines, lambda _, flight: flight["carrier"], with_airline)
        .group_by(lambda _, flight: str(flight["carrier"]), Grouped(serdes.STRING, value=serdes.JSON, name=REPARTITIONS[0]))
        .aggregate(dict, add_to_carrier, Materialized("carriers", value=serdes.JSON))
        .to_stream()
        .to(PER_CARRIER, Produced(serdes.STRING, value=serdes.JSON))
    )
    (
        flights.left_join(airports, lambda _, flight: flight["origin"], with_airport)
        .group_by(lambda _, flight: str(flight["origin"]), Grouped(serdes.STRING, value=serdes.JSON, name=REPARTITIONS[1]))
        .windowed_by(TimeWindows.of_size_and_grace(HOUR, GRACE))
        .aggregate(dict, add_to_hour, Materialized("hourly-delay", value=serdes.JSON, retention=timedelta(days=400)))
        .to_stream()
        .to(PER_HOUR, Produced(serdes.time_windowed(serdes.STRING, HOUR), value=serdes.JSON))
    )
    (
        flights.select_key(lambda _, flight: weather_key(flight["origin"], flight["time_hour"]))
        .left_join(weather, with_weather, Joined(serdes.STRING, value=serdes.JSON, name=REPARTITIONS[2]))
        .to(WITH_WEATHER, Produced(serdes.STRING, value=serdes.JSON))
    )
    return builder.build()


def weather_key(origin: object, time_hour: object) -> str:
    """Return the key of an hour's weather at an airport, for example `EWR@2013-01-01T10:00:00Z`."""
    return f"{origin}@{time_hour}"


def with_airline(flight: Row, airline: Row) -> Row:
    return {"carrier": flight["carrier"], "name": airline["name"], "dep_delay": flight["dep_delay"]}


def with_airport(flight: Row, airport: Row | None) -> Row:
    return {"origin": flight["origin"], "airport": airport["name"] if airport else None, "dep_delay": flight["dep_delay"]}


def with_weather(flight: Row, weather: Row | None) -> Row:
    return {**{name: flight[name] for name in FLIGHT_FIELDS}, **{name: weather[name] if weather else None for name in WEATHER_FIELDS}}


def add_to_carrier(_carrier: str, flight: Row, total: Row) -> Row:
    """Return a carrier's row: `name`, `flights`, and the number of these that were `cancelled` (without a departure delay)."""
    return {
        "name": flight["name"],
        "flights": cast(int, total.get("flights", 0)) + 1,
        "cancelled": cast(int, total.get("cancelled", 0)) + (flight["dep_delay"] is None),
    }


def add_to_hour(_origin: str, flight: Row, total: Row) -> Row:
    """Return an hour's row at an airport: `flights`, the number of `cancelled` ones, `delay_minutes` of the others, and their
    `mean_delay`."""
    delay = flight["dep_delay"]
    flights = cast(int, total.get("flights", 0)) + 1
    cancelled = cast(int, total.get("cancelled", 0)) + (delay is None)
    minutes = cast(int, total.get("delay_minutes", 0)) + (0 if delay is None else cast(int, delay))
    departed = flights - cancelled
    return {
        "airport": flight["airport"],
        "flights": flights,
        "cancelled": cancelled,
        "delay_minutes": minutes,
        "mean_delay": minutes / departed if departed else None,
    }
