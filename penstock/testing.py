"""Tests of topologies without a broker: `TopologyTestDriver`, its topics, and a clock that is turned by hand."""

from penstock.runtime.testing import ManualClock, TestInputTopic, TestOutputTopic, TopologyTestDriver

__all__ = ["ManualClock", "TestInputTopic", "TestOutputTopic", "TopologyTestDriver"]
