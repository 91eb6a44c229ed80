"""`penstock deploy`: roll out new code for an application."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.orchestration.commands.common import err, out, project, told_if_stopped
from penstock.orchestration.commands.run_book import ApplicationName
from penstock.orchestration.database import audit
from penstock.orchestration.instances.deployment import DEPLOY_SECONDS, Deployment


def deploy(
    application: ApplicationName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all, print the plan, and stop nothing.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also instances that run this code already, as after a change of an environment variable.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that an instance may take to run and to catch up.")] = DEPLOY_SECONDS,
) -> None:
    """Roll new code and configuration over the instances, one by one, while the others keep processing.

    Everything is checked first: the factory is imported, the configuration and its variables exist, the topology fits the state and may run
    beside the running one. If a check fails, nothing is stopped. Safe to repeat: instances that run this code already are left alone.
    docs/changing.md lists possible changes, docs/deployment.md describes an upgrade.

    `penstock deploy flight-board --dry-run`
    """
    with project() as operations, told_if_stopped(f"penstock deploy {application} goes on where it was"):
        deployment = Deployment(
            operations,
            application,
            actor=audit.this_user(),
            everything=everything,
            timeout_s=timeout,
            progress=lambda line: err.print(line, style="dim", markup=False),
        )
        if dry_run:
            for line in deployment.plan().lines():
                out.print(line, markup=False)
            return
        plan = deployment.run()
        left = f"; not those of other machines: {', '.join(plan.elsewhere)}" if plan.elsewhere else ""
        out.print(f"{application} runs the new code: {', '.join((*plan.current, *plan.replaced))}{left}", markup=False)
