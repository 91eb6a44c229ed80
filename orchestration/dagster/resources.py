"""Resource shared by assets, checks, jobs and sensors."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
from pydantic import PrivateAttr

from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.run_books import Execution


class PenstockResource(dg.ConfigurableResource[Operations]):
    """The project: declarations from `streams.toml`, the control plane, the launcher, the feeds. One per run or tick.

    It has no settings of its own: environment variables select the project (`orchestration.declarations.project_paths`), in Dagster as on
    the command line.
    """

    _operations: Operations | None = PrivateAttr(default=None)
    _execution: Execution | None = PrivateAttr(default=None)

    @property
    def operations(self) -> Operations:
        """Return the project's operations; reads `streams.toml` at first use. Raises WrongDeclarationError, ControlPlaneError."""
        if self._operations is None:
            self._operations = Operations.find()
        return self._operations

    def execution(self, begin: Callable[[], Execution]) -> Execution:
        """Return the execution of a run-book that the ops of a run share. The first of them begins it."""
        if self._execution is None:
            self._execution = begin()
        return self._execution

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._execution is not None:
            self._execution.close()
        if self._operations is not None:
            self._operations.control_plane.close()
