"""The control plane's database: wanted instances, observed state, alerts, run-books and the audit trail, in SQL.

Instances, tasks, events and checkpoints are a projection of Kafka (`orchestration.projection`). They can be dropped, and are rebuilt as far
back as the events are retained. Alerts, run-books and the audit trail are stored only here.
"""

from penstock.orchestration.database.sessions import ControlPlane, ControlPlaneError

__all__ = ["ControlPlane", "ControlPlaneError"]
