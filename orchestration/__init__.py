"""The control plane: desired and current state of instances, alerts, and operations."""
