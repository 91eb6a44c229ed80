"""Declarations of a project, for programs of its own: scripts, notebooks, Dagster assets.

from penstock.project import bootstrap_servers

producer = Producer({"bootstrap.servers": bootstrap_servers("shop")})
"""

from penstock.orchestration.declarations.applications import Applications, WrongDeclarationError
from penstock.orchestration.declarations.project_paths import ProjectPaths

__all__ = ["WrongDeclarationError", "bootstrap_servers"]


def bootstrap_servers(application_id: str) -> str:
    """Return the brokers of an application that the project declares, as commands and instances use them: its "bootstrap.servers", else the
    embedded Kafka, at the port of its last start.

    Raises WrongDeclarationError if there is no project, or it declares no such application; StreamsConfigError if a `${NAME}` is not set.
    """
    return Applications.of(ProjectPaths.find()).named(application_id).bootstrap_servers
