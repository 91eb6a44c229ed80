"""Shared types of the engine: records, ids, states, events, errors, handlers, clocks, metrics. Imports no other package of it."""
