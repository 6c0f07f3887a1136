"""Every error Plait raises on purpose.

Exceptions are for other people's mistakes (a plugin, a checkpoint, a request, a setting); our own invariants are
assertions. A message says what is wrong, where (distribution, family, site, request), with which numbers, and what
to do about it. The command line prints it without a traceback; the HTTP server maps it to a status.
"""

from __future__ import annotations


class PlaitError(Exception):
    """Base of every error that Plait raises on purpose."""


class PluginError(PlaitError):
    """A plugin cannot be used."""


class PluginApiError(PluginError):
    """A plugin was written for another version of the hook API."""


class PluginLoadError(PluginError):
    """A plugin's module could not be imported or registered."""


class FamilyContractError(PluginError):
    """A plugin returned something that the hook specification does not allow."""


class SiteClaimError(PlaitError):
    """A site of the model has no owner, or more than one."""


class PlanError(PlaitError):
    """The model's memory cannot be laid out as asked."""


class CapacityError(PlaitError):
    """The plan is sound, but this machine (or this budget) cannot hold it."""


class CheckpointError(PlaitError):
    """A checkpoint cannot be read, or does not fit its own configuration."""


class RequestError(PlaitError):
    """One request cannot be served; nothing else is disturbed.

    Attributes:
        param: name of the offending parameter in the OpenAI API, or None.
        status: the HTTP status that the server answers with.
        code: the OpenAI error code, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
