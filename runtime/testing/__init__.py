"""Tests of topologies without a broker: `TopologyTestDriver`, its topics, and a clock that is turned by hand."""

from runtime.testing.clock import ManualClock
from runtime.testing.driver import TopologyTestDriver
from runtime.testing.topics import TestInputTopic, TestOutputTopic

__all__ = ["ManualClock", "TestInputTopic", "TestOutputTopic", "TopologyTestDriver"]
