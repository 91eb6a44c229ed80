"""A worker: one thread, one consumer, one producer, and the tasks assigned to it."""
