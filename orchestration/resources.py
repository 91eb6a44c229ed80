"""What Dagster hands to assets, checks, jobs and sensors."""

from __future__ import annotations

import dagster as dg
from pydantic import PrivateAttr

from orchestration.operations import Operations


class PenstockResource(dg.ConfigurableResource[Operations]):
    """The project: what `streams.toml` declares, the control plane, the launcher, the feeds. One per run or tick.

    It has no settings of its own: the environment names the project (see `orchestration.places`), for Dagster as for the command line.
    """

    _operations: Operations | None = PrivateAttr(default=None)

    @property
    def operations(self) -> Operations:
        """Reads `streams.toml` at first use. Raises WrongDeclarationError, ControlPlaneError."""
        if self._operations is None:
            self._operations = Operations.find()
        return self._operations

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._operations is not None:
            self._operations.control_plane.close()
