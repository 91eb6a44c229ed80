"""A store over a backend: its names, its opening and closing, its serdes, its offsets and metas. What staging adds is in `staging.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from runtime.errors import InvalidStateStoreError, StreamsError
from runtime.ids import NextOffset, Partition, changelog_topic
from runtime.serdes.serde import Deserializer, PlainSerde, Serde, Serializer
from runtime.stores.backend import Backend
from runtime.stores.base import EngineStore, FlushListener, FlushRun, StoreContext, StoreLayout, StoreSchemas
from runtime.stores.layout import KEPT_LAYOUT, encode_layout
from runtime.stores.reading import Reader, unwritable
from runtime.stores.settings import StoreSettings

UPDATE_BYTES = 64
"""Bytes that an update counts for besides key and value, about what Kafka Streams' `LRUCacheEntry` counts."""

B = TypeVar("B", bound=Backend)


class BackedStore(EngineStore, Generic[B]):
    """What every store of the engine has, however it stages."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self.persistent = settings.persistent
        self._listener: FlushListener | None = None
        self._flush_run: FlushRun | None = None
        self._backend: B | None = None
        self._directory: Path | None = None
        self._context: StoreContext | None = None
        self._offsets: dict[Partition, NextOffset] = {}
        self._staged_meta: dict[str, bytes] = {}

    # --- identity -----------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def layout(self) -> StoreLayout:
        return self._settings.layout()

    @property
    def schemas(self) -> StoreSchemas:
        return self._settings.schemas()

    @property
    def is_open(self) -> bool:
        return self._backend is not None

    @property
    def logging_enabled(self) -> bool:
        return self._settings.logging

    @property
    def caching(self) -> bool:
        return self._settings.caching and self._context is not None and self._cache.limit > 0

    @property
    def values_are_objects(self) -> bool:
        return self._encode is None

    @property
    def key_to_bytes(self) -> Serializer:
        return self._write_key

    @property
    def value_to_bytes(self) -> Serializer:
        return self._write_value

    def changelog_config(self) -> Mapping[str, str]:
        return self._settings.changelog_config()

    # --- life ---------------------------------------------------------------------------------------------------------------

    def open(self, directory: Path, context: StoreContext) -> None:
        if self._backend is not None:
            raise StreamsError(f"store {self.name} is already open")
        self._directory, self._context = directory, context
        self._record_time = context.record_time
        topic = context.changelog.topic if context.changelog else changelog_topic(context.application_id, self.name)
        self._bind_serdes(topic)
        self._cache = context.memory.cache
        self._read_cache = context.memory.read_cache
        self._reset_staging()
        self._backend = self._open_backend(directory, context)
        self._read_cache.holders += 1
        self._loaded_from_backend()

    @abstractmethod
    def _open_backend(self, directory: Path, context: StoreContext) -> B:
        """The store's backend under the task's folder."""

    def _bind_serdes(self, topic: str) -> None:
        key, value = self._settings.key_serde, self._settings.value_serde
        self._write_key, self._read_key = key.serializer(topic), key.deserializer(topic)
        write, read = value.serializer(topic), value.deserializer(topic)
        self._write_value: Serializer = write
        self._read_value: Deserializer = read
        self._encode: Serializer | None = None if value.immutable else write  # before staging
        self._decode: Deserializer | None = read if value.immutable else None  # after loading
        self._fixed_size = _fixed_size(value)
        self._timestamped = self._settings.timestamped
        self._reader = Reader(
            read_key=self._read_key,
            write_key=self._write_key,
            key_serde=key.name,
            read_value=read,
            staged_as_objects=value.immutable,
            stored_with_time=self._timestamped,
            give_time=self._timestamped,
            store=self.name,
        )

    def _unwritable(self, value: object, error: Exception) -> StreamsError:
        """Says which value the store's serde could not write."""
        serde = self._settings.value_serde
        return unwritable(self.name, serde.name, "value", value, error)

    @abstractmethod
    def _reset_staging(self) -> None:
        """Makes staging empty, without regard to the shared budgets."""

    @abstractmethod
    def _forget(self) -> None:
        """Drops all of staging and gives its memory back to the shared budgets."""

    def _loaded_from_backend(self) -> None:
        """After the backend was opened or emptied: what is kept of it in memory."""
        self._offsets = self._opened().offsets()
        self._reset_meta()

    def _reset_meta(self) -> None:
        """No meta is staged but the layout, which goes with the first commit."""
        kept = self._opened().meta(KEPT_LAYOUT)
        self._staged_meta = {KEPT_LAYOUT: encode_layout(self.layout)} if kept is None else {}

    def _opened(self) -> B:
        if self._backend is None:
            raise InvalidStateStoreError(f"store {self.name} is not open")
        return self._backend

    def close(self) -> None:
        if self._backend is None:
            return
        backend, self._backend = self._backend, None
        self._listener = self._flush_run = None
        self._forget()
        self._read_cache.holders -= 1
        backend.close()

    def wipe(self) -> None:
        if self._directory is None or self._context is None:
            raise InvalidStateStoreError(f"store {self.name} was never opened")
        if self._backend is None:
            self._settings.destroy(self._directory)
            self.open(self._directory, self._context)
            return
        self._forget()
        self._backend.wipe()
        self._loaded_from_backend()

    def flush(self) -> None:
        self._opened().flush()

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        return self._opened().begin_checkpoint(path)

    # --- offsets and metas --------------------------------------------------------------------------------------------------

    def has_entries(self) -> bool:
        return not self._opened().is_empty()

    def committed_offset(self, topic_partition: Partition) -> NextOffset | None:
        return self._offsets.get(topic_partition)

    def committed_offsets(self) -> dict[Partition, NextOffset]:
        return dict(self._offsets)

    def set_meta(self, name: str, value: bytes) -> None:
        self._staged_meta[name] = value

    def get_meta(self, name: str) -> bytes | None:
        staged = self._staged_meta.get(name)
        return staged if staged is not None else self._opened().meta(name)


def _fixed_size(serde: Serde) -> int | None:
    """Bytes of each staged value where they need not be counted one by one; None where `len` of the staged value gives them."""
    if not serde.immutable:
        return None
    if isinstance(serde, PlainSerde) and serde.size is not None:
        return serde.size
    return None if serde.name in ("STRING", "BYTES") else UPDATE_BYTES
