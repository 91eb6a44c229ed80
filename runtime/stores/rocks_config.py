"""The hook for RocksDB's options, `rocksdb.config.setter` (Kafka Streams' `RocksDBConfigSetter`).

Only what cannot cost data or break a bound of the engine may be set. Everything else that RocksDB has is refused by name: the write-ahead
log, atomic flushes, comparators, prefix extractors and paths (commits and restores rest on them), and the block cache and the budget of
write buffers (one of each per process, `rocksdb.block.cache.bytes` and `rocksdb.write.buffer.bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.user_errors import described, pass_ctrl_c

ROCKSDB_CONFIG_SETTER = "rocksdb.config.setter"
COMPRESSIONS = ("none", "snappy", "lz4", "lz4hc", "zstd", "zlib", "bz2")
COMPACTION_STYLES = ("level", "universal")


class RocksDBOptions:
    """Options of one store that may be set, with the names of RocksDB's Java API in snake_case. Sizes in bytes. Any other option raises
    StreamsConfigError."""

    __slots__ = ("compaction_style", "compression", "of_database", "of_families", "of_tables")

    def __init__(self) -> None:
        self.of_tables: dict[str, tuple[object, ...]] = {}
        """Setters of the table format, with their arguments."""
        self.of_families: dict[str, tuple[object, ...]] = {}
        """Setters of the families with entries."""
        self.of_database: dict[str, tuple[object, ...]] = {}
        """Setters of the database as a whole."""
        self.compression: str | None = None
        self.compaction_style: str | None = None

    def set_compression_type(self, name: str) -> None:
        """One of `COMPRESSIONS`; none by default. Existing files keep theirs until they are compacted."""
        self.compression = _one_of("set_compression_type", name, COMPRESSIONS)

    def set_compaction_style(self, name: str) -> None:
        """One of `COMPACTION_STYLES`; level by default. (`fifo` deletes data.)"""
        self.compaction_style = _one_of("set_compaction_style", name, COMPACTION_STYLES)

    def set_block_size(self, size: int) -> None:
        self.of_tables["set_block_size"] = (_positive("set_block_size", size),)

    def set_bloom_filter(self, bits_per_key: float) -> None:
        """10 bits by default."""
        if not bits_per_key > 0:
            raise StreamsConfigError(f"{ROCKSDB_CONFIG_SETTER}: set_bloom_filter({bits_per_key!r}): expected a number above 0")
        self.of_tables["set_bloom_filter"] = (float(bits_per_key), False)

    def set_write_buffer_size(self, size: int) -> None:
        """Size of one write buffer, 8 MiB by default. All of them together stay within `rocksdb.write.buffer.bytes`."""
        self.of_families["set_write_buffer_size"] = (_positive("set_write_buffer_size", size),)

    def set_max_write_buffer_number(self, number: int) -> None:
        self.of_families["set_max_write_buffer_number"] = (_positive("set_max_write_buffer_number", number),)

    def set_target_file_size_base(self, size: int) -> None:
        self.of_families["set_target_file_size_base"] = (_positive("set_target_file_size_base", size),)

    def set_max_bytes_for_level_base(self, size: int) -> None:
        self.of_families["set_max_bytes_for_level_base"] = (_positive("set_max_bytes_for_level_base", size),)

    def set_level_zero_file_num_compaction_trigger(self, files: int) -> None:
        name = "set_level_zero_file_num_compaction_trigger"
        self.of_families[name] = (_positive(name, files),)

    def set_max_open_files(self, files: int) -> None:
        """256 by default."""
        self.of_database["set_max_open_files"] = (_positive("set_max_open_files", files),)

    def set_max_background_jobs(self, jobs: int) -> None:
        self.of_database["set_max_background_jobs"] = (_positive("set_max_background_jobs", jobs),)

    def set_bytes_per_sync(self, size: int) -> None:
        self.of_database["set_bytes_per_sync"] = (_positive("set_bytes_per_sync", size),)

    def set_compaction_readahead_size(self, size: int) -> None:
        self.of_database["set_compaction_readahead_size"] = (_positive("set_compaction_readahead_size", size),)

    def set_use_direct_reads(self, enabled: bool) -> None:
        self.of_database["set_use_direct_reads"] = (bool(enabled),)

    def set_use_direct_io_for_flush_and_compaction(self, enabled: bool) -> None:
        self.of_database["set_use_direct_io_for_flush_and_compaction"] = (bool(enabled),)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(each for each in vars(RocksDBOptions) if each.startswith("set_")))
        raise StreamsConfigError(
            f"{ROCKSDB_CONFIG_SETTER}: {name} cannot be used: commits, restores and the bounds of memory rest on the engine's own options. "
            f"May be used: {known}"
        )


class RocksDBConfigSetter:
    """Base of the class that `rocksdb.config.setter` names. `set_config` is called each time a store in RocksDB is opened."""

    def configure(self, configs: Mapping[str, object]) -> None:
        """Called once before the first use."""

    def set_config(self, store_name: str, options: RocksDBOptions, configs: Mapping[str, object]) -> None:
        """Set options of a store. An exception ends the opening of the store, and the worker."""
        raise NotImplementedError


OptionsOf = Callable[[str], RocksDBOptions]
"""Returns the options that are set for a store."""


def options_of(setter: RocksDBConfigSetter, configs: Mapping[str, object]) -> OptionsOf:
    """Return the function that asks the setter about a store. It raises StreamsConfigError if the setter raises."""

    def ask(store_name: str) -> RocksDBOptions:
        options = RocksDBOptions()
        try:
            setter.set_config(store_name, options, configs)
        except StreamsConfigError:
            raise
        except BaseException as error:
            pass_ctrl_c(error, ROCKSDB_CONFIG_SETTER)
            raise StreamsConfigError(f"{ROCKSDB_CONFIG_SETTER} failed for store {store_name}: {described(error)}") from error
        return options

    return ask


def _one_of(setter: str, name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise StreamsConfigError(f"{ROCKSDB_CONFIG_SETTER}: {setter}({name!r}): expected one of {', '.join(known)}")
    return name


def _positive(setter: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise StreamsConfigError(f"{ROCKSDB_CONFIG_SETTER}: {setter}({value!r}): expected a number above 0")
    return value
