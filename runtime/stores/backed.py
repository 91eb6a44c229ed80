"""A store over a backend: its name, opening and closing, serdes, offsets and metadata. `staging.py` adds staging."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import NextOffset, TopicPartition, changelog_topic
from penstock.runtime.serdes.serde import Deserializer, PlainSerde, Serde, Serializer
from penstock.runtime.stores.backend import Backend
from penstock.runtime.stores.base import (
    ChangelogRecord,
    EngineStore,
    FlushListener,
    FlushRun,
    StoreContext,
    StoreLayout,
    StoreSchemas,
)
from penstock.runtime.stores.headers import HeadersReader, PackedSerde
from penstock.runtime.stores.layout import LAYOUT_META, encode_layout
from penstock.runtime.stores.reading import Reader, unreadable, unwritable
from penstock.runtime.stores.settings import StoreSettings
from penstock.runtime.stores.store_format import StoreFormat

UPDATE_BYTES = 64
"""Size of an update besides key and value, about that of Kafka Streams' `LRUCacheEntry`."""

B = TypeVar("B", bound=Backend)


class BackedStore(EngineStore, Generic[B]):
    """Base of the engine's stores, independent of how they stage."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self.persistent = settings.persistent
        self.keeps_headers = bool(settings.headers)
        self._listener: FlushListener | None = None
        self._flush_run: FlushRun | None = None
        self._backend: B | None = None
        self._directory: Path | None = None
        self._context: StoreContext | None = None
        self._offsets: dict[TopicPartition, NextOffset] = {}
        self._staged_meta: dict[str, bytes] = {}

    # --- identity -----------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def layout(self) -> StoreLayout:
        return self._settings.layout()

    @property
    def format(self) -> StoreFormat:
        return self._settings.format()

    @property
    def schemas(self) -> StoreSchemas:
        return self._settings.schemas()

    def schemas_with_writers(self, topics: Sequence[str]) -> StoreSchemas:
        return self._settings.schemas(topics)

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
        """Return the store's backend under the task's directory."""

    def _bind_serdes(self, topic: str) -> None:
        key, value = self._settings.key_serde, self._settings.value_serde
        if self.keeps_headers:
            value = PackedSerde(value)
        self._write_key, self._read_key = key.serializer(topic), key.deserializer(topic)
        write, read = value.serializer(topic), value.deserializer(topic)
        self._write_value: Serializer = write
        self._read_value: Deserializer = read
        self._encode: Serializer | None = None if value.immutable else write  # before staging
        self._decode: Deserializer | None = read if value.immutable else None  # after loading
        self._fixed_size = _fixed_size(value)
        self._timestamped = self._settings.timestamped
        self._reader = (HeadersReader if self.keeps_headers else Reader)(
            read_key=self._read_key,
            write_key=self._write_key,
            key_serde=key.name,
            read_value=read,
            staged_as_objects=value.immutable,
            stored_with_time=self._timestamped,
            give_time=self._timestamped,
            store=self.name,
            value_serde=value.name,
        )

    def _unwritable(self, value: object, error: BaseException) -> StreamsError:
        """Return an error that names the value which the store's serde could not write."""
        serde = self._settings.value_serde
        return unwritable(self.name, serde.name, "value", value, error)

    def _unreadable(self, key: bytes | None, data: object, error: BaseException) -> Exception:
        """Return an error that names the entry which the store's serde could not read."""
        return unreadable(self.name, self._settings.value_serde.name, key, self._read_key, data, error)

    @abstractmethod
    def _reset_staging(self) -> None:
        """Empty the staging, without updating the shared budgets."""

    @abstractmethod
    def _forget(self) -> None:
        """Empty the staging and return its memory to the shared budgets."""

    def _loaded_from_backend(self) -> None:
        """Load what the store holds of the backend in memory, after the backend was opened or emptied."""
        self._offsets = self._opened().offsets()
        self._reset_meta()

    def _reset_meta(self) -> None:
        """Stage no metadata except the layout, which is written with the first commit."""
        recorded = self._opened().meta(LAYOUT_META)
        self._staged_meta = {LAYOUT_META: encode_layout(self.layout, self.format)} if recorded is None else {}

    def _opened(self) -> B:
        if self._backend is None:
            raise InvalidStateStoreError(f"store {self.name} is not open: its task was closed or has moved; ask again")
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

    def committed_records(self, records: Sequence[ChangelogRecord]) -> Iterator[ChangelogRecord]:
        read = self._opened().get
        for key, _, timestamp in records:
            yield self._changelog_record(key, read(key), timestamp)

    def _changelog_record(self, key: bytes, stored: bytes | None, timestamp: int) -> ChangelogRecord:
        """Return the changelog record of a stored value; `timestamp` is for a value without one."""
        return key, stored, timestamp

    def flush(self) -> None:
        self._opened().flush()

    def begin_checkpoint(self, path: Path) -> Callable[[], None]:
        return self._opened().begin_checkpoint(path)

    # --- offsets and metas --------------------------------------------------------------------------------------------------

    def has_entries(self) -> bool:
        return not self._opened().is_empty()

    def committed_offset(self, topic_partition: TopicPartition) -> NextOffset | None:
        return self._offsets.get(TopicPartition.checked(topic_partition))

    def committed_offsets(self) -> dict[TopicPartition, NextOffset]:
        return dict(self._offsets)

    def set_meta(self, name: str, value: bytes) -> None:
        self._staged_meta[name] = value

    def get_meta(self, name: str) -> bytes | None:
        staged = self._staged_meta.get(name)
        return staged if staged is not None else self._opened().meta(name)


def _fixed_size(serde: Serde) -> int | None:
    """Return the size of every staged value if it is fixed; None where `len` of the staged value gives it."""
    if not serde.immutable:
        return None
    if isinstance(serde, PlainSerde) and serde.size is not None:
        return serde.size
    return None if serde.name in ("STRING", "BYTES") else UPDATE_BYTES
