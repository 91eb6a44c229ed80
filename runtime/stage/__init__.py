"""Stages: a sub-topology's task run over records that are at hand, without a broker (docs/history.md)."""
