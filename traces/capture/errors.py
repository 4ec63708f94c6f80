"""The error of a capture. Needs nothing, so that every module may raise it."""


class CaptureError(Exception):
    """The model does something that a trace cannot hold, or the run went wrong."""
