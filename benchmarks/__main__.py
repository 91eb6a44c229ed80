"""`python -m benchmarks`: throughput (`benchmarks.run`), and the commands that measure state."""

import typer

from benchmarks import (
    assign,
    board,
    calls,
    checkpoints,
    commits,
    gaps,
    history,
    latency,
    many,
    quotas,
    reports,
    restore,
    run,
    tables,
    wide,
    workers,
)

app = typer.Typer(add_completion=False)
app.callback(invoke_without_command=True)(run.main)
app.command("restore")(restore.main)
app.command("checkpoints")(checkpoints.main)
app.command("commits")(commits.main)
app.command("gaps")(gaps.main)
app.command("history")(history.main)
app.command("latency")(latency.main)
app.command("many")(many.main)
app.command("assign")(assign.main)
app.command("board")(board.main)
app.command("calls")(calls.main)
app.command("quotas")(quotas.main)
app.command("reports")(reports.main)
app.command("tables")(tables.main)
app.command("wide")(wide.main)
app.command("workers")(workers.main)

app(prog_name="python -m benchmarks")
