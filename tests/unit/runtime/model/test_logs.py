"""Every line of the log is one JSON object that names application, instance and task."""

import json
import logging
import subprocess
import sys
import threading
from contextvars import copy_context

import pytest

from penstock.runtime.model import logs
from penstock.runtime.model.errors import StreamsConfigError
from tests.support import ROOT


def line(record: logging.LogRecord) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(logs.JsonFormatter().format(record))
    return parsed


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("penstock.runtime.test").makeRecord(
        "penstock.runtime.test", logging.ERROR, __file__, 1, message, (), None, extra=extra
    )
    return made


def test_a_line_has_the_bound_fields() -> None:
    def bound() -> dict[str, object]:
        logs.bind(application="app", instance="app-1")
        logs.bind(task="0_3")
        return line(record("hello"))

    found = copy_context().run(bound)
    assert {k: found[k] for k in ("message", "level", "application", "instance", "task")} == {
        "message": "hello",
        "level": "ERROR",
        "application": "app",
        "instance": "app-1",
        "task": "0_3",
    }
    assert "task" not in line(record("hello"))


def test_the_fields_of_a_process_are_in_the_lines_of_all_threads() -> None:
    made = logs.JsonFormatter({"application": "app", "instance": "app-1"})
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.append(made.format(record("a request"))))
    thread.start()
    thread.join()
    found = json.loads(lines[0])
    assert (found["application"], found["instance"]) == ("app", "app-1")


def test_the_task_may_be_given_with_the_line() -> None:
    assert line(record("paused", task="0_1"))["task"] == "0_1"


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    text = logs.JsonFormatter().format(made)
    assert "\n" not in text
    assert "ValueError: bad" in json.loads(text)["error"]


def test_an_exception_of_another_process_comes_as_text() -> None:
    made = record("failed")
    made.exc_text = "Traceback …\nValueError: bad"
    assert line(made)["error"] == "Traceback …\nValueError: bad"


def test_a_line_of_text_names_the_logger_and_the_task() -> None:
    shown = logs.TextFormatter().format(record("hello", task="0_3"))
    assert shown.endswith(" ERROR penstock.runtime.test: hello (task 0_3)")


def test_levels_are_given_by_logger_and_a_wrong_one_is_named() -> None:
    output = logs.Output.of("text", "warning, penstock.runtime.kafka=DEBUG", {})
    assert output == logs.Output(json=False, levels={"": logging.WARNING, "penstock.runtime.kafka": logging.DEBUG})
    assert logs.Output.of(environment={logs.LEVEL: "penstock=ERROR"}).levels == {"": logging.INFO, "penstock": logging.ERROR}
    for wrong in ({logs.LEVEL: "LOUD"}, {logs.FORMAT: "xml"}):
        with pytest.raises(StreamsConfigError, match=next(iter(wrong))):
            logs.Output.of(environment=wrong)


def test_an_import_configures_no_logging() -> None:
    code = """
import logging, penstock, penstock.api, penstock.testing
loggers = [each for name, each in logging.root.manager.loggerDict.items() if name.startswith("penstock") and hasattr(each, "handlers")]
assert not logging.root.handlers and logging.root.level == logging.WARNING
assert loggers and not any(each.handlers or each.level or not each.propagate for each in loggers)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
