"""`penstock acls`: the rights that an application needs on brokers with an authorizer."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.orchestration.commands.common import explained, named, out, say
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.rights import Role, rights
from penstock.runtime.topology.factory import build_topology


def acls(
    application: Annotated[str, typer.Argument(help="The application.id, as in streams.toml.")],
    role: Annotated[Role | None, typer.Option(help="Only this role. Default: all.")] = None,
    principal: Annotated[
        str | None, typer.Option(help="Principal that gets the rights, with --role. Default: User: and the application.id, with the role.")
    ] = None,
) -> None:
    """Print the commands of kafka-acls that grant what instances, operators (the command line and Dagster) and Spark need.

    The topology is that of the function in `streams.toml`; no broker is asked, and nothing is changed. `admin.properties` stands for the
    login of whoever may grant. The commands may be run twice.

    **Examples**

    `penstock acls flight-board`

    `penstock acls flight-board --role instance --principal 'User:CN=flight-board' | sh`
    """
    if principal is not None and role is None:
        raise typer.BadParameter("--principal needs to know whose it is: add --role")
    with explained():
        declared = named(application, None)
        ProjectPaths.find().make_importable()
        topology = build_topology(declared.factory).resolved(declared.streams_config())
        servers = declared.connection.servers
    patterns = ", ".join(pattern.pattern for pattern in topology.patterns)
    for each in [role] if role is not None else list(Role):
        say(f"# {each}")
        if patterns:
            say(f"# and for each topic that {patterns} matches what an input topic needs")
        for right in rights(application, topology, each):
            say(f"# {right.why}")
            out.print(right.command(principal or f"User:{application}-{each}", servers), markup=False, soft_wrap=True)
