"""Penstock's component for Dagster projects of `dg`: the applications of `streams.toml`, declared in a `defs.yaml`.

    dg scaffold defs penstock.components.StreamsComponent streams

It gives the definitions of `penstock.dagster.definitions`. `post_processing`, which every component has, sets tags, owners and groups of
the assets.
"""

from penstock.orchestration.declarations.project_paths import STREAMS_TOML
from penstock.runtime.model.extras import extra

with extra("dagster", "penstock.components"):
    import dagster as dg
    from pydantic import Field

    from penstock.orchestration.definitions import definitions_of

__all__ = ["StreamsComponent"]

_TEMPLATE = """\
# What runs. For example:
#
# [applications.shop]                         # the application.id
# factory = "shop.topology:build"             # a function without arguments that returns builder.build()
# instances = 1
#
# [applications.shop.config]
# "bootstrap.servers" = "127.0.0.1:9092"      # default: the embedded Kafka (penstock broker start)
"""


class _Scaffolder(dg.Scaffolder):
    """Writes `defs.yaml`, and a `streams.toml` with an example if the project has none."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        dg.scaffold_component(request, {"streams_toml": STREAMS_TOML})
        if request.project_root is not None and not (streams_toml := request.project_root / STREAMS_TOML).exists():
            streams_toml.write_text(_TEMPLATE, encoding="utf-8")


@dg.scaffold_with(_Scaffolder)
class StreamsComponent(dg.Component, dg.Model, dg.Resolvable):
    """Stream applications on Kafka: their instances as assets, health checks, run-books, schedules and sensors."""

    streams_toml: str = Field(
        default=STREAMS_TOML,
        description="The file that declares the applications, relative to the root of the Dagster project.",
        examples=["streams.toml", "streaming/streams.toml"],
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions for the applications of the file."""
        return definitions_of(context.project_root / self.streams_toml)
