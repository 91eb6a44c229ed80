"""A foreign-key join goes on after an accepted change of the left table's type, and after a restart: its subscriptions hold hashes of left
rows as they were written then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock import Consumed, Materialized, Produced, StreamsBuilder, Topology, serdes
from tests.support import Kafka, wait_until
from tests.support.engine import client

Topic = Callable[..., str]
S = serdes.STRING


class Product(msgspec.Struct):
    brand: str


class Noted(msgspec.Struct):
    brand: str
    note: str = ""


def topology(left: str, right: str, sink: str, kind: type[Product] | type[Noted]) -> Topology:
    def brand(product: Product | Noted) -> str:
        return product.brand

    def joined(product: Product | Noted, name: str) -> str:
        return f"{product.brand}: {name}"

    builder = StreamsBuilder()
    products = builder.table(left, Consumed(S, value=serdes.json(kind)), Materialized("products"))
    brands = builder.table(right, Consumed(S, value=S), Materialized("brands"))
    products.join(brands, brand, joined, materialized=Materialized("joined", value=S)).to_stream().to(sink, Produced(S, value=S))
    return builder.build()


def test_right_updates_reach_left_rows_that_an_earlier_version_wrote(
    broker: Kafka, topic: Topic, application_id: str, state_dir: Path
) -> None:
    left, right, sink = (topic(name, config={"cleanup.policy": "compact"} if name != "out" else None) for name in ("left", "right", "out"))
    products: set[bytes] = set()

    def runs(kind: type[Product] | type[Noted], name: str, *rows: tuple[str, bytes]) -> None:
        """Run a version until the update of the brand has reached every product."""
        broker.produce(left, list(rows))
        streams = client(broker, topology(left, right, sink, kind), application_id, state_dir)
        streams.start()
        broker.produce(right, [("b", name)])
        products.update(key.encode() for key, _ in rows)

        def arrived() -> bool:
            return {record.key: record.value for record in broker.consume(sink)} == dict.fromkeys(products, f"b: {name}".encode())

        wait_until(arrived, 20, f"{name} for {products}")
        streams.close(10_000)

    runs(Product, "one", ("p1", b'{"brand":"b"}'))
    runs(Product, "two")
    runs(Noted, "three", ("p2", b'{"brand":"b"}'))
    runs(Noted, "four")
