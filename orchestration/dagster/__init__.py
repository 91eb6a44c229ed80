"""The control plane's Dagster objects: jobs, their shared resource, partitions of instances, the check on alerts."""
