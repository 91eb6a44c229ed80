"""Configuration file of an instance's process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.runtime.config.environment import filled_in, resolved
from penstock.runtime.model.errors import StreamsConfigError


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of an instance's configuration file (see `runtime/instance/__main__.py`)."""

    application: str
    instance: str
    factory: str
    config: dict[str, str | int | float | bool]
    log_path: str | None = None

    @classmethod
    def read(cls, path: Path) -> InstanceSettings:
        """Read the file and replace variables. Raises StreamsConfigError, naming the file and the wrong field or the unset variable."""
        read = cls.written(path)
        return msgspec.structs.replace(
            read,
            instance=filled_in(read.instance, f"{path}, instance"),
            config=resolved(read.config, str(path)),
            log_path=None if read.log_path is None else filled_in(read.log_path, f"{path}, log_path"),
        )

    @classmethod
    def written(cls, path: Path) -> InstanceSettings:
        """Read the file without replacing variables. Raises StreamsConfigError."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise StreamsConfigError(f"{path}: {error}") from error

    def __repr__(self) -> str:
        """Without the configuration, which may hold secrets."""
        return f"InstanceSettings({self.application!r}, {self.instance!r}, {self.factory!r})"

    def streams_config(self) -> dict[str, object]:
        return {**self.config, "application.id": self.application, "client.id": self.instance}


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `exit_path`, JSON. A process that was killed leaves none."""

    pid: int
    status: int


def exit_path(settings: Path) -> Path:
    """Return the file to which the process with this configuration file writes its exit status."""
    return settings.with_suffix(".exit.json")
