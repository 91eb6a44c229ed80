"""The control plane: what is wanted, what was seen, what went wrong and what was done about it, in SQL.

Instances, tasks, events and checkpoints are a projection of what the applications write to Kafka (`orchestration.feed`): they can be
dropped, and rebuilt as far back as the events are kept. Alerts, run-books and the audit trail are known here only.
"""

from orchestration.control_plane.sessions import ControlPlane, ControlPlaneError

__all__ = ["ControlPlane", "ControlPlaneError"]
