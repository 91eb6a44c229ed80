"""Prefetching of store entries that a source topic's records will need, before the records are decoded.

The look-ups are determined once per task: those (`OperatorSupplier.look_up`) of all operators that are reached from a source through
operators that forward key and timestamp unchanged. The keys are a prediction: a record that is filtered out or cannot be read does not need
them, and entries that were not predicted are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from penstock.runtime.model.timestamps import extractor_function
from penstock.runtime.operators.context import KeysAhead, NodeContext
from penstock.runtime.serdes.serde import PlainSerde
from penstock.runtime.stores.base import EntryStore
from penstock.runtime.topology.nodes import ProcessorNode, SourceNode
from penstock.runtime.topology.subtopologies import SubTopology

StoreKey = Callable[[bytes], "bytes | None"]


class KeyedMessage(Protocol):
    """A record before it is decoded."""

    def key(self) -> bytes | None: ...

    def timestamp(self) -> tuple[int, int]: ...


class SourceLookUp(NamedTuple):
    """Look-ups in one store."""

    store: EntryStore
    store_key: StoreKey | None
    """Converts a key's bytes on the topic to those in the store; None if they are the same."""
    keys: KeysAhead | None

    def begin(self, messages: Sequence[KeyedMessage]) -> None:
        """Start reading the entries that the records will need. The store raises errors of these reads when it needs the entry."""
        found = _keys(messages, self.store_key, self.keys)
        if found:
            self.store.look_ahead(found)


class SourceLookUps:
    """Look-ups of the records of one source node."""

    def __init__(self, source: SourceNode, subtopology: SubTopology, contexts: Mapping[str, NodeContext], extractor: object) -> None:
        """`contexts`: the contexts of the built processors. `extractor`: the configured default."""
        self.of_stores: list[SourceLookUp] = []
        serde = source.key_serde
        if not isinstance(serde, PlainSerde):  # it needs the record's headers, or a registry
            return
        read, write = serde.deserializer(""), serde.serializer("")
        own_time = extractor_function(source.timestamp_extractor or extractor) is None
        nodes = {node.name: node for node in subtopology.processors}
        for name in _reached(source.name, subtopology, nodes):
            look_up = nodes[name].supplier.look_up(contexts[name])
            if look_up is not None and (own_time or look_up.keys is None):
                to_bytes = look_up.store.key_to_bytes
                self.of_stores.append(SourceLookUp(look_up.store, None if to_bytes is write else _store_key(read, to_bytes), look_up.keys))


def _reached(source: str, subtopology: SubTopology, nodes: Mapping[str, ProcessorNode]) -> list[str]:
    """Return the processors that get the source's records with unchanged keys."""
    reached: dict[str, None] = {}
    heads = [source]
    while heads:
        for child in subtopology.children[heads.pop()]:
            if child in nodes and child not in reached:
                reached[child] = None
                if nodes[child].supplier.keeps_key():
                    heads.append(child)
    return list(reached)


def _store_key(read: Callable[[bytes], object], to_bytes: Callable[[object], bytes | None]) -> StoreKey:
    return lambda raw: to_bytes(read(raw))


def _keys(messages: Sequence[KeyedMessage], store_key: StoreKey | None, keys: KeysAhead | None) -> Sequence[bytes]:
    found = [message.key() for message in messages]
    if None in found:
        messages = [message for message in messages if message.key() is not None]
        found = [message.key() for message in messages]
    if store_key is not None:
        try:
            found = [store_key(cast(bytes, raw)) for raw in found]
        except Exception:  # noqa: BLE001 (user code may raise anything; the error is reported when the record is processed)
            return ()
        if None in found:
            return ()
    raws = cast("list[bytes]", found)
    return raws if keys is None else keys(raws, [message.timestamp()[1] for message in messages])
