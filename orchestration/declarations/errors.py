"""Base of the control plane's errors."""


class ExpectedError(Exception):
    """Error whose message says all that its reader needs: what happened, and what to do. Commands print it without a traceback."""
