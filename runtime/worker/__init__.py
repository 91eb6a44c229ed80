"""A worker: one thread, one consumer, one producer, and the tasks that were granted to it."""
