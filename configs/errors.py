"""Every error Recpool raises, and the HTTP status each one maps to.

    RecpoolError
    ├── InvalidRequest     422   the caller's input is wrong; names the field and the remedy
    ├── NotFound           404   a named thing does not exist
    ├── Conflict           409   the change contradicts the current state
    ├── Overloaded         429   refused now, with seconds to wait before the next try
    ├── DeadlineExceeded   504   the answer would come too late
    ├── Unavailable        503   the service or a part of it is not ready
    └── OfflineError             start-up and offline work: names file, field and remedy
        ├── ConfigError          a setting or profile is wrong
        ├── DataError            an input table is wrong
        └── ArtifactError        a release, index or model file is wrong

All arguments go to ``super().__init__`` so that an error survives pickling between processes.
"""

from __future__ import annotations


class RecpoolError(Exception):
    """Root of the tree. ``status`` is the HTTP status a reply carries."""

    status = 500

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class InvalidRequest(RecpoolError):
    """The request is wrong: ``InvalidRequest(message, field)``."""

    status = 422

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message, field)
        self.field = field


class NotFound(RecpoolError):
    status = 404


class Conflict(RecpoolError):
    status = 409


class Overloaded(RecpoolError):
    """Refused for lack of capacity: ``Overloaded(message, retry_after_s)``."""

    status = 429

    def __init__(self, message: str, retry_after_s: float = 1.0):
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RecpoolError):
    status = 504


class Unavailable(RecpoolError):
    status = 503


class OfflineError(RecpoolError):
    """Start-up or offline failure; the command line prints it and exits 2."""


class ConfigError(OfflineError):
    pass


class DataError(OfflineError):
    pass


class ArtifactError(OfflineError):
    pass
