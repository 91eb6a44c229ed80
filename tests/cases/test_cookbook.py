"""The cookbook has an example of everything that a topology can be made of: a new operation without one fails here."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import api, serdes
from penstock.runtime.stores.interfaces import KeyValueStore, SessionStore, VersionedKeyValueStore, WindowStore
from penstock.runtime.stores.suppliers import Builder
from tests.support import ROOT

COOKBOOK = ROOT / "docs" / "cookbook"
PROGRAMS = [
    program for page in sorted(COOKBOOK.glob("*.md")) for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]
TEXT = "\n".join(PROGRAMS)
OPTIONS = (
    *("Branched", "Consumed", "Grouped", "Joined", "Materialized", "Named", "Printed", "Produced", "Repartitioned", "StreamJoined"),
    *(
        "TableJoined",
        "ContextualFixedKeyProcessor",
        "ContextualProcessor",
        "FixedKeyProcessorSupplier",
        "Processor",
        "PunctuationType",
        "Record",
        "Topology",
    ),
    *("ValueTransformerWithKey", "FailOnInvalidTimestamp", "LogAndSkipOnInvalidTimestamp", "UsePartitionTimeOnInvalidTimestamp"),
    "WallclockTimestampExtractor",
)
OF_TOPOLOGIES = (
    *("add_source", "add_processor", "add_sink", "add_state_store", "add_global_store", "connect_processor_and_state_stores"),
    *("add_read_only_state_store", "describe"),
)
THE_ENGINES = {
    "Builder.build",
    "Builder.changelog_config",
    "KTable.readable_stores",
    "TimeWindows.windows_for",
    "UnlimitedWindows.windows_for",
}
"""Public, but called by the engine."""


def of_the_dsl() -> Iterator[type]:
    """The exported classes whose methods make topologies."""
    exported = (getattr(api, name) for name in api.__all__)
    yield from (kind for kind in exported if inspect.isclass(kind) and kind.__module__.startswith("penstock.runtime.dsl."))
    yield from (api.Suppressed.BufferConfig, api.Stores, Builder, api.AutoOffsetReset, api.ProcessorContext)


def methods(kind: type) -> list[str]:
    """The public methods of a class and of its bases, static and of the class ones included."""
    static = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return [name for name, found in static.items() if isinstance(found, classmethod | staticmethod) or inspect.isfunction(found)]


def watched(kind: type, name: str, called: set[str]) -> object:
    """The method, noting in `called` that a page called it."""
    static = inspect.getattr_static(kind, name)
    function: Callable[..., object] = static.__func__ if isinstance(static, classmethod | staticmethod) else static

    @functools.wraps(function)
    def noting(*arguments: object, **keywords: object) -> object:
        if sys._getframe(1).f_code.co_filename == "page":
            called.add(f"{kind.__name__}.{name}")
        return function(*arguments, **keywords)

    return type(static)(noting) if isinstance(static, classmethod | staticmethod) else noting


def test_every_operation_is_called_in_the_cookbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted, called = set(THE_ENGINES), set(THE_ENGINES)
    kinds = [(kind, methods(kind)) for kind in of_the_dsl()]
    for kind, names in (*kinds, (api.Topology, OF_TOPOLOGIES)):
        for name in names:
            wanted.add(f"{kind.__name__}.{name}")
            monkeypatch.setattr(kind, name, watched(kind, name, called))
    for program in PROGRAMS:
        exec(compile(program, "page", "exec", dont_inherit=True), {"__name__": "page"})
    assert sorted(wanted - called) == []


def test_every_option_and_serde_is_in_the_cookbook() -> None:
    assert not [name for name in OPTIONS if not re.search(rf"\b{name}\b", TEXT.replace("import", ""))]
    assert not [name for name in serdes.__all__ if f"serdes.{name}" not in TEXT]


@pytest.mark.parametrize("kind", [KeyValueStore, WindowStore, SessionStore, VersionedKeyValueStore])
def test_every_method_of_a_store_is_in_the_cookbook(kind: type) -> None:
    names = [name for name in dir(kind) if not name.startswith("_") and name.islower()]
    assert not [name for name in names if f".{name}(" not in TEXT]
