"""A record's way in: the main consumer, deserialization, and the queues of a task's partitions."""
