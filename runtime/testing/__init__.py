"""Tests of topologies without a broker: `TopologyTestDriver`, its topics, and a clock that is turned by hand."""

from penstock.runtime.testing.clock import ManualClock
from penstock.runtime.testing.driver import TopologyTestDriver
from penstock.runtime.testing.topics import TestInputTopic, TestOutputTopic

__all__ = ["ManualClock", "TestInputTopic", "TestOutputTopic", "TopologyTestDriver"]
