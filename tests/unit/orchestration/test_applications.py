"""`streams.toml`: what is right is read, and each kind of mistake is reported with file, line, key and what would be right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.orchestration.declarations.applications import Applications, RunBook, Severity, WrongDeclarationError
from penstock.orchestration.declarations.policies import Start
from penstock.runtime.model.errors import StreamsConfigError
from tests.support.declarations import refuses_declaration

FILE = Path("/project/streams.toml")
RIGHT = """
[applications.flight-board]
factory = "examples.flight_board.topology:build"
instances = ["flight-board-1", "flight-board-2"]

[applications.flight-board.config]
"bootstrap.servers" = "broker:9092"
"commit.interval.ms" = 200

[applications.flight-board.paused]
run-book = "skip-record"
start = "after-approval"
budget-per-hour = 3
skip-errors = ["ValueError: .*"]

[applications.flight-board.health]
lag-warn-records = 100

[applications.flight-board.checkpoint-freshness]
warn-seconds = 60
error-seconds = 120

[[notifications]]
urls = ["json://localhost"]
severity = "ERROR"
kinds = ["TASK_PAUSED"]
applications = ["flight-board"]
"""


def parse(text: str) -> Applications:
    return Applications.parse(text, FILE)


def test_everything_that_can_be_declared_is_read() -> None:
    declared = parse(RIGHT)
    (application,) = declared.applications
    assert declared.instances == ("flight-board-1", "flight-board-2")
    assert application.bootstrap_servers == "broker:9092"
    assert application.config["commit.interval.ms"] == 200
    assert application.paused.run_book is RunBook.SKIP_RECORD
    assert application.paused.budget_per_hour == 3
    assert (application.paused.start, application.paused.skip_errors) == (Start.AFTER_APPROVAL, ("ValueError: .*",))
    assert application.health.lag_warn_records == 100
    assert (application.freshness.warn_seconds, application.freshness.error_seconds) == (60, 120)
    assert declared.notifications[0].severity is Severity.ERROR
    assert declared.of_instance("flight-board-2") is application


def test_defaults_are_the_embedded_broker_and_no_run_book() -> None:
    (application,) = parse('[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n').applications
    assert application.bootstrap_servers == "127.0.0.1:9092"
    assert application.paused.run_book is RunBook.NONE


def test_nothing_declared_is_right() -> None:
    assert parse("").instances == ()


COUNTED = """
[applications.a]
factory = "m:f"
instances = 3

[applications.a.config]
"http.port" = 8080
"metrics.port" = "9100"
"application.server" = "host:80"
"""


def test_a_number_of_instances_names_them() -> None:
    declared = parse(COUNTED)
    (application,) = declared.applications
    assert application.instances == ("a-1", "a-2", "a-3") and application.counted
    assert [application.number(name) for name in ("a-1", "a-3", "a-4", "a-0", "a-x", "b-1", "a-01")] == [1, 3, 4, None, None, None, None]
    assert declared.of_instance("a-4") is application
    with pytest.raises(WrongDeclarationError, match="no instance 'b-1' is declared; declared are a-1, a-2, a-3"):
        declared.of_instance("b-1")


def test_an_applications_name_means_all_of_its_instances_and_those_that_it_was_scaled_to() -> None:
    declared = parse(COUNTED + '[applications.b]\nfactory = "m:f"\ninstances = ["b", "b-east"]\n')
    assert declared.expanded(["a"]) == ("a-1", "a-2", "a-3")
    assert declared.expanded(["a-2", "a", "nothing"], known=["a-5", "b-east", "other"]) == ("a-2", "a-1", "a-3", "a-5", "nothing")
    assert declared.expanded(["b"]) == ("b",), "an instance has the name"


def test_instances_of_one_machine_listen_on_ports_one_after_the_other() -> None:
    (application,) = parse(COUNTED).applications
    for name, behind in (("a-1", 0), ("a-3", 2), ("a-7", 6)):
        config = application.config_of(name)
        assert (config["http.port"], config["metrics.port"], config["application.server"]) == (
            8080 + behind,
            9100 + behind,
            f"host:{80 + behind}",
        )
    (plain,) = parse(RIGHT).applications
    assert plain.config_of("flight-board-2") == plain.config and not plain.counted
    assert plain.number("flight-board-2") == 2 and plain.number("flight-board-3") is None


@pytest.mark.parametrize("count", ["0", "-1", "1001"])
def test_a_number_of_instances_has_bounds(count: str) -> None:
    with pytest.raises(WrongDeclarationError, match=r"line 4: applications\.a\.instances: expected a whole number from 1 to 1000, found"):
        parse(COUNTED.replace("instances = 3", f"instances = {count}"))


HEAD = '[applications.a]\nfactory = "m:f"\ninstances = ["a-1"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[applications.a\n", ["not TOML", "line 1"]),
        (HEAD + 'factori = "x:y"\n', ["line 4", "applications.a.factori", "did you mean 'factory'"]),
        ("aplications = 1\n", ["line 1", "aplications", "did you mean 'applications'"]),
        ('[applications.a]\ninstances = ["a-1"]\n', ["line 1", "applications.a.factory", "is missing", "expected for example factory ="]),
        (
            '[applications.a]\nfactory = "no colon"\ninstances = ["a-1"]\n',
            ["line 2", "applications.a.factory", "examples.flight_board.topology:build"],
        ),
        ('[applications.a]\nfactory = "m:f"\ninstances = "a-1"\n', ["line 3", "applications.a.instances", "expected a list"]),
        ('[applications.a]\nfactory = "m:f"\ninstances = []\n', ["line 3", "the list is empty"]),
        ('[applications.a]\nfactory = "m:f"\ninstances = ["a/1"]\n', ["line 3", "'a/1' is not possible"]),
        (HEAD + '[applications.b]\nfactory = "m:f"\ninstances = ["a-1"]\n', ["line 6", "declared twice", "'a'"]),
        (HEAD + '[applications.a.config]\nbootstrap.servers = "x:1"\n', ["line 5", '"bootstrap.…"', "quoted"]),
        (HEAD + '[applications.a.config]\n"state.dir" = "/tmp"\n', ["line 5", '"state.dir"', "PENSTOCK_HOME"]),
        (HEAD + '[applications.a.config]\n"application.id" = "b"\n', ["line 5", '"application.id"', "name of the table"]),
        (HEAD + '[applications.a.config]\n"commit.interval.mss" = 5\n', ["line 5", "commit.interval.mss", "commit.interval.ms"]),
        (HEAD + '[applications.a.config]\n"commit.interval.ms" = "soon"\n', ["line 5", "commit.interval.ms"]),
        (HEAD + '[applications.a.paused]\nrun-book = "skip"\n', ["line 5", "applications.a.paused.run-book", "'skip-record'"]),
        (HEAD + '[applications.a.paused]\nstart = "after-approval"\n', ["line 5", "start", 'add run-book = "skip-record"']),
        (HEAD + '[applications.a.global-recovery]\nstart = "automatic"\n', ["line 5", "start", 'run-book = "restore-global-topic"']),
        (HEAD + "[applications.a.paused]\nbudget-per-hour = -1\n", ["line 5", "budget-per-hour", "at least 0", "-1"]),
        (HEAD + "[applications.a.paused]\nbudget-per-hour = true\n", ["line 5", "a whole number"]),
        (HEAD + '[applications.a.paused]\nstart = "approval"\n', ["line 5", "applications.a.paused.start", "'after-approval'"]),
        (HEAD + '[applications.a.paused]\nskip-errors = ["("]\n', ["line 5", "skip-errors", "'(' is not a regular expression"]),
        (HEAD + "[applications.a.paused]\nbad-deploy-tasks = 1\n", ["line 5", "bad-deploy-tasks", "at least 2"]),
        (HEAD + "[applications.a.health]\nlag-warn = 5\n", ["line 5", "applications.a.health.lag-warn", "did you mean 'lag-warn-records'"]),
        (HEAD + "[applications.a.health]\nlag-warn-records = 9\nlag-error-records = 5\n", ["line 6", "at least lag-warn-records (9)"]),
        (HEAD + "[applications.a.checkpoint-freshness]\nwarn-records = 9\nerror-records = 5\n", ["line 6", "at least warn-records (9)"]),
        (
            HEAD + "[applications.a.checkpoint-freshness]\nwarn-seconds = 900\nerror-seconds = 60\n",
            ["line 6", "at least warn-seconds (900)"],
        ),
        ('[[notifications]]\nurls = ["x"]\n', ["line 2", "notifications.urls", "mailto://"]),
        ('[[notifications]]\nurls = ["json://x"]\napplications = ["b"]\n', ["line 3", "no application 'b'"]),
        (
            '[applications.a]\nfactory = "m:f"\ninstances = 2\n[applications.b]\nfactory = "m:f"\ninstances = ["a-3"]\n',
            ["line 6", "applications.b.instances", "instance 'a-3' is the name that the command penstock scale a 3 gives", "another name"],
        ),
        ("[applications]\na = 1\n", ["line 2", "applications.a", "expected a table"]),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_what_would_be_right(text: str, says: list[str]) -> None:
    refuses_declaration(text, FILE, says)


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + f'[applications.a.config]\n"sasl.password" = ["{SECRET}"]\n',
        HEAD + f'[applications.a.config]\nsasl.password = ["{SECRET}"]\n',
        HEAD + f'[applications.a.config]\n"sasl.password" = {{ of = {{ me = "{SECRET}" }} }}\n',
        HEAD + f'[applications.a.config]\n"sasl.password" = {{ {SECRET} = 1 }}\n',
        HEAD + f'[applications.a.config]\n"sasl.pasword" = {{ {SECRET} = 1 }}\n',
        HEAD + f"[applications.a.config]\nhttp.tokn.{SECRET} = 1\n",
        HEAD + f"[applications.a.config.sasl]\npassword.{SECRET}.of = 1\n",
        HEAD + f'[applications.a.config]\n"sasl.pasword" = ["{SECRET}"]\n',
        HEAD + f'[applications.a.config]\n"sasl.pasword" = "{SECRET}"\n',
        HEAD + f'[applications.a.config]\n"producer.acks" = {SECRET}\n',
        HEAD + f'[applications.a]\nconfig = "sasl.password={SECRET}"\n'.replace("[applications.a]\n", ""),
        HEAD + f'token = "{SECRET}"\n',
        HEAD + f'[applications.a.snapshots]\nexport = "me:{SECRET}@host"\n',
        f'notifications = "slack://{SECRET}"\n',
        f'[[notifications]]\nurls = "slack://{SECRET}"\n',
        f'[[notifications]]\nurls = ["{SECRET}"]\n',
        f'[[notifications]]\nurls = [["slack://{SECRET}"]]\n',
        f'[[notifications]]\nurls = {{ a = "slack://{SECRET}" }}\n',
        f'[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = ["{SECRET}"]\n',
        f'[spark]\nmaster = "spark://me:{SECRET}@host"\n',
        f'[spark]\nconnect = "sc://me:{SECRET}@host/;token={SECRET}?x"\n',
        HEAD + '[applications.a.config]\n"http.token" = 5353535353\n',
        HEAD + f'[applications.a.config]\n"http.token" = {"5353" * 2000}\n',
        HEAD + '[applications.a.config]\n"http.token" = 5353-05-03\n',
    ],
)
def test_no_mistake_shows_what_may_be_a_secret(text: str) -> None:
    with pytest.raises(WrongDeclarationError) as caught:
        parse(text)
    assert SECRET not in str(caught.value) and "5353" not in str(caught.value)


def test_what_is_declared_is_printed_without_secrets() -> None:
    """In logs and tracebacks of programs that print it."""
    spark = f'[spark]\nconnect = "sc://host:1/;token={SECRET}"\n[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"\n'
    made = parse(HEAD + f'[applications.a.config]\n"sasl.password" = "{SECRET}"\n[[notifications]]\nurls = ["slack://{SECRET}"]\n' + spark)
    assert SECRET not in repr(made)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "streams.toml"
    path.write_bytes("# ä\n".encode("latin-1"))
    with pytest.raises(WrongDeclarationError, match=r"streams\.toml: not TOML: byte 2 is not UTF-8"):
        Applications.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongDeclarationError, match=r"nowhere\.toml: cannot be read .*PENSTOCK_STREAMS"):
        Applications.read(tmp_path / "nowhere.toml")


def test_an_unknown_instance_is_answered_with_those_that_are_declared() -> None:
    with pytest.raises(WrongDeclarationError, match="flight-board-1, flight-board-2"):
        parse(RIGHT).of_instance("flight-board-9")


def test_snapshots_are_declared_per_application() -> None:
    (application,) = parse(RIGHT).applications
    assert (application.snapshots.every_minutes, application.snapshots.keep, application.snapshots.export) == (0, 3, None)
    assert application.snapshots.cron is None
    more = '[applications.flight-board.snapshots]\nevery-minutes = 120\nkeep = 5\nexport = "s3://${BUCKET}/p"\nexport-keep = 9\n'
    snapshots = parse(RIGHT + more).applications[0].snapshots
    assert (snapshots.every_minutes, snapshots.keep, snapshots.export, snapshots.export_keep) == (120, 5, "s3://${BUCKET}/p", 9)
    assert snapshots.cron == "0 */2 * * *"


@pytest.mark.parametrize(("minutes", "cron"), [(1, "*/1 * * * *"), (15, "*/15 * * * *"), (60, "0 */1 * * *"), (1440, "0 0 * * *")])
def test_a_snapshot_is_taken_at_the_same_minutes_each_day(minutes: int, cron: str) -> None:
    text = f'[applications.a]\nfactory = "m:f"\ninstances = 1\n[applications.a.snapshots]\nevery-minutes = {minutes}\n'
    assert parse(text).applications[0].snapshots.cron == cron


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("every-minutes = 7", "7 does not divide an hour or a day: possible are 1, 2, 3"),
        ("keep = 0", "keep"),
        ('export = "relative/folder"', "'relative/folder' is not possible here"),
        ("every-hours = 1", "did you mean 'every-minutes'"),
        ('export = "/folder"\nkep = 1', "known here are 'every-minutes', 'keep', 'export', 'export-keep'"),
    ],
)
def test_a_wrong_declaration_of_snapshots_is_reported_with_its_line(line: str, why: str) -> None:
    text = f'[applications.a]\nfactory = "m:f"\ninstances = 1\n[applications.a.snapshots]\n{line}\n'
    with pytest.raises(WrongDeclarationError, match=re.escape(why)) as raised:
        parse(text)
    assert f"line {5 + line.count(chr(10))}" in str(raised.value)


def test_variables_are_replaced_where_a_value_is_used_and_instances_get_them_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("BROKER", "broker:9093")
    monkeypatch.setenv("PORT", "9200")
    config = """
        "bootstrap.servers" = "${BROKER}"
        "metrics.port" = "${PORT}"
        "commit.interval.ms" = "${NOT_SET}"
        "sasl.password" = "${NOT_SET}"
    """
    (application,) = parse(f'[applications.a]\nfactory = "m:f"\ninstances = 2\n[applications.a.config]\n{config}').applications
    assert application.bootstrap_servers == "broker:9093"
    assert application.config_of("a-2") == {**application.config, "metrics.port": 9201}
    with pytest.raises(StreamsConfigError, match=re.escape("a, sasl.password: ${NOT_SET} is not set in the environment")):
        application.streams_config()
    monkeypatch.setenv("NOT_SET", "100")
    assert application.streams_config()["commit.interval.ms"] == 100


def test_a_setting_that_only_instances_need_may_have_a_variable_that_is_not_set_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    (application,) = parse(
        '[applications.a]\nfactory = "m:f"\ninstances = 1\n[applications.a.config]\n"http.token" = "${NOT_SET}"'
    ).applications
    assert application.streams_config()["http.token"] is None
    with pytest.raises(StreamsConfigError, match="is not set"):
        application.value("http.token")


def test_a_value_of_the_environment_is_checked_when_the_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERVAL", "soon")
    with pytest.raises(WrongDeclarationError, match=r"line 5: .*commit.interval.ms.*\$\{INTERVAL\}"):
        parse('[applications.a]\nfactory = "m:f"\ninstances = 1\n[applications.a.config]\n"commit.interval.ms" = "${INTERVAL}"')
