"""Every line of the log is one JSON object that names application, instance and task."""

import json
import logging
import sys
import threading
from contextvars import copy_context

from penstock.runtime.model import logs


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
