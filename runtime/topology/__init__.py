"""Topologies: nodes and their connections, sub-topologies, internal topics, and the compiled pipeline."""
