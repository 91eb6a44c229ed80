"""Lengths of time that the application gives, with a warning about numbers that are probably seconds."""

from __future__ import annotations

import logging
from datetime import timedelta

from penstock.runtime.model.call_sites import call_site
from penstock.runtime.model.clock import Duration, to_ms
from penstock.runtime.model.once import first_time

logger = logging.getLogger(__name__)


def length_ms(length: Duration, what: str) -> int:
    """Convert like `to_ms`. Warns, once per line of the application, about a number so small that seconds may be meant."""
    milliseconds = to_ms(length, what)
    if not isinstance(length, timedelta) and 0 < milliseconds < 1000 and first_time("small length", site := call_site()):
        logger.warning(
            "%s: %s of %d is %d ms. A bare number is in milliseconds; for seconds give timedelta(seconds=%d), and "
            "timedelta(milliseconds=%d) if this is meant",
            *(site, what, milliseconds, milliseconds, milliseconds, milliseconds),
        )
    return milliseconds
