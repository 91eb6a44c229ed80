"""`python -m orchestration` is `penstock`, for where the command is not on the path."""

from orchestration.cli import app

app(prog_name="penstock")
