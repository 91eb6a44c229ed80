"""The programs of `workloads.py` in Quix Streams, run by a separate interpreter (`programs.py`); `BENCH_SPEC` names the job."""

import json
import os
import struct
import time
from datetime import timedelta

import orjson
from quixstreams import Application
from quixstreams.dataframe import StreamingDataFrame
from quixstreams.models import SerializationContext, Serializer, Topic, TopicConfig
from quixstreams.state import State

run = json.loads(os.environ["BENCH_SPEC"])
app = Application(
    broker_address=run["bootstrap"],
    consumer_group=run["app"],
    state_dir=run["state"],
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once" if run["eos"] else "at-least-once",
    commit_interval=run["commit_ms"] / 1000,
    loglevel="WARNING",
)
CONFIG = TopicConfig(num_partitions=4, replication_factor=1)
seen = False


def first(value: bytes) -> bytes:
    """Start the clock at the first record."""
    global seen
    if not seen:
        seen = True
        print("BENCH FIRST", time.time_ns() // 1_000_000, flush=True)
    return value


class Sum(Serializer):
    """Serialises the second of a pair, a sum."""

    def __call__(self, value: tuple[bytes, float], ctx: SerializationContext) -> bytes:
        return struct.pack(">d", value[1])


def count(value: bytes, state: State) -> bytes:
    number = state.get("n", 0) + 1
    state.set("n", number)
    return struct.pack(">q", number)


def joined(event: dict[str, object], profile: dict[str, object]) -> dict[str, object]:
    return {"user": event["user"], "amount": event["amount"], "country": profile["country"], "tier": profile["tier"]}


def build(records: StreamingDataFrame, output: Topic) -> None:
    match run["kind"]:
        case "stateless":
            large = records.apply(orjson.loads).filter(lambda event: event["amount"] > 50.0)
            large.apply(lambda event: orjson.dumps({"u": event["user"], "a": event["amount"]})).to_topic(output)
        case "count":
            records.apply(count, stateful=True).to_topic(output)
        case "window":
            amounts = records.apply(lambda value: orjson.loads(value)["amount"])
            sums = amounts.tumbling_window(timedelta(minutes=1)).sum().current()
            named = sums.apply(lambda found, key, at, headers: (b"%b@%d" % (key, found["start"]), found["value"]), metadata=True)
            named.to_topic(output, key=lambda pair: pair[0])
        case "join":
            table = app.dataframe(app.topic(run["table"], key_deserializer="bytes", value_deserializer="json", config=CONFIG))
            events = records.apply(orjson.loads).join_asof(table, how="inner", on_merge=joined)
            events.apply(orjson.dumps).to_topic(output)
        case kind:
            raise SystemExit(f"no such program here: {kind}")


source = app.topic(run["input"], key_deserializer="bytes", value_deserializer="bytes", config=CONFIG)


build(
    app.dataframe(source).apply(first),
    app.topic(run["output"], key_serializer="bytes", value_serializer=Sum() if run["kind"] == "window" else "bytes", config=CONFIG),
)
app.run()
