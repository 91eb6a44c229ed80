"""Kafka as the control plane uses it, without a database: recorded state of an application, and commands to its tasks."""
