"""Names of an application's objects in Dagster: the key of its asset, its partitions, its group, and names of jobs made from its id."""

from __future__ import annotations

import zlib

import dagster as dg

from penstock.orchestration.declarations.applications import Applications

RUNNING = dg.DataVersion("running")
"""Data version of every materialisation of an instance: a restart does not change what it makes, so what is made of it is not outdated."""


def instances_key(application_id: str) -> dg.AssetKey:
    """Return the key of an application's asset, whose partitions are its instances."""
    return dg.AssetKey([application_id, "instances"])


def status_key(application_id: str) -> dg.AssetKey:
    """Return the key of the asset that shows the state of an application now."""
    return dg.AssetKey([application_id, "status"])


def partitions_name(application_id: str) -> str:
    """Return the name of an application's partitions definition."""
    return f"{application_id}/instances"


def plain_names(applications: Applications) -> dict[str, str]:
    """Return for each application a name of letters, digits and underscores: its group, and a part of the names of its jobs. Ids that
    differ in punctuation only are told apart by a suffix."""
    ids = [application.id for application in applications.applications]
    plain = {each: "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in each) for each in ids}
    names = list(plain.values())
    return {each: name if names.count(name) == 1 else f"{name}_{zlib.crc32(each.encode()):08x}" for each, name in plain.items()}


def start_job(plain_name: str) -> str:
    """Return the name of the job that starts an application's instances."""
    return f"start_{plain_name}"
