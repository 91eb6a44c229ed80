"""Printing a stream (Kafka Streams' `Printed`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Generic

from runtime.dsl.options import name_of
from runtime.errors import TopologyError
from runtime.type_variables import K, Subscripted, V


@dataclass(frozen=True, slots=True)
class Printed(Subscripted, Generic[K, V]):
    """Where and how records are printed: a line `[label]: text` for each. Made by `to_sys_out` and `to_file`.

    `label` is by default the name of the node above; `key_value_mapper(key, value)` gives the text, by default `key, value`; `name` is the
    name of the node.
    """

    path: Path | None = None
    _: KW_ONLY
    label: str | None = None
    key_value_mapper: Callable[[K, V], str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        name_of(self.name)

    @classmethod
    def to_sys_out(
        cls, *, label: str | None = None, key_value_mapper: Callable[[K, V], str] | None = None, name: str | None = None
    ) -> Printed[K, V]:
        """To standard output."""
        return Printed(None, label=label, key_value_mapper=key_value_mapper, name=name)

    @classmethod
    def to_file(
        cls,
        file_path: str | Path,
        *,
        label: str | None = None,
        key_value_mapper: Callable[[K, V], str] | None = None,
        name: str | None = None,
    ) -> Printed[K, V]:
        """To a file, which is emptied now; written out with each commit. Raises TopologyError where it cannot be written."""
        path = Path(file_path)
        try:
            path.write_bytes(b"")
        except OSError as error:
            raise TopologyError(f"Printed: the stream cannot be written to {str(file_path)!r}: {error}") from error
        return Printed(path, label=label, key_value_mapper=key_value_mapper, name=name)

    def with_label(self, label: str) -> Printed[K, V]:
        """With another label."""
        return replace(self, label=label)

    def with_key_value_mapper(self, mapper: Callable[[K, V], str]) -> Printed[K, V]:
        """With another text."""
        return replace(self, key_value_mapper=mapper)

    def with_name(self, name: str) -> Printed[K, V]:
        """With a name for the node."""
        return replace(self, name=name)
