"""`rocksdb.config.setter`: the options arrive in the files of the stores, and what the engine rests on cannot be set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from penstock import Consumed, Materialized, RocksDBConfigSetter, RocksDBOptions, StreamsBuilder, StreamsConfig, serdes
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.stores import StoreContext, StoreMemory, Stores

BASE: Mapping[str, object] = {"application.id": "app", "bootstrap.servers": "localhost:9092"}


class Compressed(RocksDBConfigSetter):
    def set_config(self, store_name: str, options: RocksDBOptions, configs: Mapping[str, object]) -> None:
        assert configs["application.id"] == "app"
        if store_name == "rows":
            options.set_compression_type("zstd")
            options.set_compaction_style("universal")
            options.set_block_size(16_384)
            options.set_write_buffer_size(1 << 20)
            options.set_max_open_files(177)


def opened(folder: Path, setter: object, name: str = "rows") -> str:
    """Open a store, write to it, and return RocksDB's record of its options."""
    memory = StoreMemory()
    memory.set_rocks_options(StreamsConfig({**BASE, "rocksdb.config.setter": setter}))
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store(name), serdes.STRING, serdes.STRING).build()
    store.open(folder, StoreContext("app", folder, memory=memory))
    store.put("a", "b" * 1000)
    store.commit({})
    assert store.get("a") == "b" * 1000
    store.close()
    return max(folder.rglob("OPTIONS-*"), key=lambda path: path.name).read_text()


def test_the_options_of_a_store_arrive_in_its_files(tmp_path: Path) -> None:
    wanted = ("compression=kZSTD", "compaction_style=kCompactionStyleUniversal", "block_size=16384", "max_open_files=177")
    chosen, others = opened(tmp_path / "1", f"{__name__}.Compressed"), opened(tmp_path / "2", Compressed, "others")
    for part in wanted:
        assert part in chosen and part not in others
    assert "atomic_flush=true" in chosen and "index_type=kTwoLevelIndexSearch" in chosen, "the engine's own options stay"


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda options: options.set_wal_dir("/tmp"), "set_wal_dir cannot be used: .* May be used: set_block_size"),
        (lambda options: options.set_compaction_style("fifo"), "set_compaction_style.'fifo'.: expected one of level, universal"),
        (lambda options: options.set_block_size(0), "set_block_size.0.: expected a number above 0"),
        (lambda options: options.set_bloom_filter(-1), "set_bloom_filter.-1.: expected a number above 0"),
        (lambda options: setattr(options, "block_size", 4096), "AttributeError: .*no attribute 'block_size'"),
        (lambda options: {"y": 1}["x"], "rocksdb.config.setter failed for store rows: KeyError"),
    ],
)
def test_options_that_must_not_change_are_refused(tmp_path: Path, change: Callable[[RocksDBOptions], object], reported: str) -> None:
    class Wrong(RocksDBConfigSetter):
        def set_config(self, store_name: str, options: RocksDBOptions, configs: Mapping[str, object]) -> None:
            change(options)

    with pytest.raises(StreamsConfigError, match=reported):
        opened(tmp_path, Wrong)


def test_a_setter_of_another_class_is_refused() -> None:
    with pytest.raises(StreamsConfigError, match=r"rocksdb.config.setter = .* is not a RocksDBConfigSetter"):
        StoreMemory().set_rocks_options(StreamsConfig({**BASE, "rocksdb.config.setter": dict}))


def test_the_test_driver_asks_it_too() -> None:
    from penstock.testing import TopologyTestDriver

    class Asked(Compressed):
        stores: list[str] = []  # noqa: RUF012

        def set_config(self, store_name: str, options: RocksDBOptions, configs: Mapping[str, object]) -> None:
            self.stores.append(store_name)

    builder = StreamsBuilder()
    builder.table("in", Consumed(serdes.STRING, value=serdes.STRING), Materialized("rows"))
    with TopologyTestDriver(builder.build(), {"rocksdb.config.setter": Asked}):
        assert Asked.stores == ["rows"]
