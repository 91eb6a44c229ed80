"""Text of an alert for an operator: its facts, the bad record decoded and as hex, and the next commands. The command line, Dagster and the
notifications share it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from penstock.orchestration.alerts import raw_bytes
from penstock.orchestration.database.models import Alert, AlertState
from penstock.runtime.model.clock import from_ms

_TIMES = ("since_ms", "timestamp_ms")
_CODE = "the code was wrong: deploy the fix, then"


def seen(alert: Alert) -> str:
    """Return the number of occurrences, with the first and the last time."""
    first, last = (at.isoformat(sep=" ", timespec="seconds") for at in (alert.opened_at, alert.last_seen_at))
    return f"once, {first}" if alert.count == 1 else f"{alert.count} times, first {first}, last {last}"


def facts(alert: Alert) -> dict[str, str]:
    """Return the details, by name, as text; bytes of a record decoded and as a hex dump."""
    shown: dict[str, str] = {}
    for name, value in alert.detail.items():
        empty = value is None or value == "" or value == [] or value == {} or (name == "left_out_bytes" and not value)
        if empty or name in ("run_book_run", "waits_for_approval", "commands"):
            continue
        if name.endswith("_base64"):
            data = raw_bytes.from_base64(value)
            part = name.removesuffix("_base64")
            shown[part] = raw_bytes.decoded(data, size=_size(alert, part))
            shown[f"{part}_hex"] = raw_bytes.hex_dump(data, size=_size(alert, part))
        elif name in _TIMES and (at := _time(value)) is not None:
            shown[name.removesuffix("_ms")] = at
        elif isinstance(value, dict):
            shown[name] = "\n".join(f"{key}: {entry}" for key, entry in value.items())
        else:
            shown[name] = str(value)
    return shown


def _time(value: object) -> str | None:
    """Format milliseconds since the epoch; None for what is no time: a producer may write any number."""
    try:
        return f"{from_ms(value):%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, int) and value >= 0 else None
    except OverflowError:
        return None


_RECORD = ("topic", "partition", "offset", "timestamp", "timestamp_ms", "left_out_bytes", "key_bytes", "value_bytes")
_WHY = ("error_type", "error", "location", "reason", "why", "ended", "node", "part", "serde", "field", "byte")
_MOST_ERROR = 1_000
"""Characters of an error in the sections of an alert: on a page what repairs it must not be far below."""
_FIRST_BYTES, _HEX_BYTES = 64, 256
"""Bytes of a key or value in the sections of an alert, and in hex if all are shown."""


def sections(alert: Alert, *, whole: bool = False) -> dict[str, str]:
    """Return the alert in the order in which an operator needs it. The names begin with numbers, so that sorting keeps this order.
    Sections without content are left out. `whole`: with all bytes of the record that the alert has, not only the first ones."""
    known = {name: value for name, value in facts(alert).items() if not name.endswith("_hex")}
    if not whole and len(error := known.get("error", "")) > _MOST_ERROR:
        known["error"] = f"{error[:_MOST_ERROR]}… ({len(error):,} characters: penstock alerts show {alert.id})"

    def lines(*names: str) -> str:
        return "\n".join(f"{name}: {known.pop(name)}" for name in names if name in known)

    record, why, log = lines(*_RECORD), lines(*_WHY), [log_line(line) for line in known.pop("log_end", "").split("\n") if line.strip()]
    found = {
        "1 what": alert.title,
        "2 since": f"{seen(alert)} ({alert.severity}, {alert.state})",
        "3 record": f"{alert.subject}\n{record}" if record else "",
        "4 why": why,
        "4.1 stack": known.pop("stack", ""),
        "4.2 last line of the log": _last_line(log),
        "4.3 log excerpt": "\n".join(log),
        "5 bytes": first_bytes(alert, raw_bytes.SHOWN, _HEX_BYTES) if whole else first_bytes(alert),
    }
    repair = [known.pop("run-book", ""), *([alert.resolution or ""] if alert.state == AlertState.RESOLVED.value else next_commands(alert))]
    found["6 repair"] = "\n".join(filter(None, repair))
    context = {"alert": str(alert.id), "instance": alert.instance, "task": alert.task, "subject": alert.subject}
    others = {name: value for name, value in known.items() if name not in ("key", "value")}
    found["7 what else"] = "\n".join(f"{name}: {value}" for name, value in {**context, **others}.items() if value)
    return {name: text for name, text in found.items() if text}


def log_line(line: str) -> str:
    """Return a line of an instance's log as a person reads it: time, level and message of a JSON line, with its stack; else the line."""
    try:
        found = msgspec.json.decode(line, type=_LogLine)
    except msgspec.DecodeError:
        return line
    return f"{found.at} {found.level} {found.message}" + (f"\n{found.error.rstrip()}" if found.error else "")


class _LogLine(msgspec.Struct):
    at: str
    level: str
    message: str
    error: str = ""


def _last_line(log: Sequence[str]) -> str:
    """Return the last entry of a log in one line, with the last line of its stack, which says what failed."""
    if not log:
        return ""
    first, *stack = log[-1].split("\n")
    return f"{first}: {stack[-1].strip()}" if stack else first


def first_bytes(alert: Alert, text_bytes: int = 4 * _FIRST_BYTES, hex_bytes: int = _FIRST_BYTES) -> str:
    """Return the beginning of the record's key and value, decoded and as hex; empty without a record."""
    shown: list[str] = []
    for part in ("key", "value"):
        if (data := raw_bytes.from_base64(alert.detail.get(f"{part}_base64"))) is not None:
            size = _size(alert, part)
            shown += [f"{part}: {raw_bytes.decoded(data, text_bytes, size)}", raw_bytes.hex_dump(data, hex_bytes, size)]
    return "\n".join(shown)


def _size(alert: Alert, part: str) -> int | None:
    """Return the number of bytes of a record's key or value, of which an alert has the first ones; None if it is not known."""
    size = alert.detail.get(f"{part}_bytes")
    return size if isinstance(size, int) else None


def waits_for_approval(alert: Alert) -> int | None:
    """Return the run that the policy proposed for this alert and that was undecided when the alert was opened."""
    run = alert.detail.get("run_book_run")
    return run if isinstance(run, int) and alert.detail.get("waits_for_approval") else None


def next_commands(alert: Alert) -> list[str]:
    """Return the next commands, the most likely first; a line that begins with # says when to use the following ones."""
    application, task = shlex.quote(alert.application), shlex.quote(alert.task or "")
    resolve = f"penstock alerts resolve {alert.id}"
    match alert.kind:
        case "TASK_PAUSED" if alert.detail.get("reason") == "command":
            return [f"penstock run-book resume {application} {task}"]
        case "TASK_PAUSED":
            run = waits_for_approval(alert)
            skip = f"penstock run-book skip-record {application} {task} --record {shlex.quote(alert.subject)}"
            skip = skip if run is None else f"penstock run-book approve {run}"
            rehearse = f"penstock rehearse {application} --paused {task}"
            tried = "# would code that is corrected read the record, and what would it do?"
            return [skip, tried, rehearse, f"# {_CODE}", f"penstock restart {shlex.quote(alert.instance or '')}"]
        case "BAD_DEPLOY":
            return [
                f"penstock tasks {application}",
                f"# {_CODE}",
                "penstock restart",
                "# the records are bad, and may be skipped again",
                resolve,
            ]
        case "INSTANCE_DIED":
            return [f"penstock status {shlex.quote(alert.instance or '')}", f"penstock start {shlex.quote(alert.instance or '')}"]
        case "GLOBAL_RECOVERY" if alert.detail.get("lost"):
            run = waits_for_approval(alert)
            topic = shlex.quote(str(alert.detail.get("topic")))
            restore = f"penstock run-book restore-global-topic {application} {topic} --dry-run"
            return [restore, *([] if run is None else ["# its rows are to come back", f"penstock run-book approve {run}"])]
        case "INPUT_PARTITIONS_ADDED" if alert.detail.get("store"):
            topic = shlex.quote(alert.subject)
            return [
                "# the table is right until it is rebuilt: keep its rows",
                f"penstock snapshot take {application}",
                f"# create {alert.subject} again, with as many partitions and cleanup.policy=compact; then, before others write to it:",
                f"penstock run-book restore-global-topic {application} {topic}",
                resolve,
            ]
        case "INPUT_PARTITIONS_ADDED" if alert.detail.get("internal"):
            return [f"penstock stop {application}", f"penstock reset {application}", resolve]
        case "INPUT_PARTITIONS_ADDED":
            return [
                "# producers write to the former partitions only, until one of these is done",
                f"# to keep the state: copy {alert.subject} into a new topic with {alert.detail.get('read')} partitions, and read that one",
                "# to build the state again with all partitions:",
                f"penstock reset {application}",
                "# to begin beside it, with history: a new application.id and a seed (penstock docs seeding)",
                resolve,
            ]
        case "TABLE_DIFFERS":
            damaged = "# the files are damaged: stop the instance, move its state away, start it; it is restored from the changelog"
            return [f"penstock describe {application}", damaged, resolve]
        case "STATE_DIFFERS":
            again = "# was the code another one in between, or does the store depend on the wall clock? Then it may differ"
            return [f"penstock audit-state {application}", again, resolve]
        case "DEAD_LETTERS":
            return [f"penstock run-book replay-dead-letters {application} --dry-run"]
        case _:
            given = alert.detail.get("commands")
            return [*map(str, given)] if isinstance(given, list) else [f"penstock describe {application}", resolve]
