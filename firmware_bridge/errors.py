"""The one exception family of the firmware bridge; every message is one line that says what, where and what to do.

``LinkError`` and its kin concern the way to the controller, ``RefusedError`` and its kin are its own answers
(one class per SCMI status), ``NotVerifiedError`` means that an accepted request did not show when it was read back.
"""

from __future__ import annotations

from firmware_bridge.scmi.messages.status import MEANINGS, Status


class ScmiError(Exception):
    """Something went wrong between an agent and its controller."""


class RequestError(ScmiError):
    """The request makes no sense for this controller; nothing was sent."""


class MessageError(ScmiError):
    """Bytes that are no SCMI message, or values that do not fit into one."""


class UnknownMessageError(MessageError):
    """A well-formed header of a message that this dialect does not contain."""


class LinkError(ScmiError):
    """The way to the controller cannot be opened, or has gone."""


class NoAnswerError(LinkError):
    """Nothing usable came back within the time and number of tries."""


class WrongDeviceError(LinkError):
    """Something answers, but not as an SCMI platform that can be used."""


class NotVerifiedError(ScmiError):
    """A request was accepted, but reading it back shows something else."""


class RefusedError(ScmiError):
    """The platform answered with an error status; what was in force before stays in force."""

    status: Status | None = None

    def __init__(self, request: str, code: int, hint: str = "") -> None:
        self.request = request
        self.code = code
        self.hint = hint
        name, meaning = named_status(code)
        super().__init__(f"{request}: {name}: {meaning}{f'; {hint}' if hint else ''}")

    def with_hint(self, hint: str) -> RefusedError:
        """The same refusal with what the caller knows about it: the domain's name, its range."""
        return type(self)(self.request, self.code, hint)


class NotSupportedError(RefusedError):
    """NOT_SUPPORTED."""

    status = Status.NOT_SUPPORTED


class InvalidParametersError(RefusedError):
    """INVALID_PARAMETERS."""

    status = Status.INVALID_PARAMETERS


class DeniedError(RefusedError):
    """DENIED."""

    status = Status.DENIED


class NotFoundError(RefusedError):
    """NOT_FOUND."""

    status = Status.NOT_FOUND


class OutOfRangeError(RefusedError):
    """OUT_OF_RANGE."""

    status = Status.OUT_OF_RANGE


class BusyError(RefusedError):
    """BUSY, still, after the bounded retries."""

    status = Status.BUSY


class CommsError(RefusedError):
    """COMMS_ERROR."""

    status = Status.COMMS_ERROR


class GenericError(RefusedError):
    """GENERIC_ERROR."""

    status = Status.GENERIC_ERROR


class HardwareError(RefusedError):
    """HARDWARE_ERROR."""

    status = Status.HARDWARE_ERROR


class ProtocolError(RefusedError):
    """PROTOCOL_ERROR."""

    status = Status.PROTOCOL_ERROR


_BY_STATUS = {kind.status: kind for kind in RefusedError.__subclasses__()}


def refusal(request: str, code: int) -> RefusedError:
    """The typed error for a status code; a code outside the standard becomes a plain ``RefusedError``."""
    return _BY_STATUS.get(_known(code), RefusedError)(request, code)


def named_status(code: int) -> tuple[str, str]:
    """Name and meaning of a status code."""
    status = _known(code)
    return (
        ("status " + str(code), "not a status of the standard") if status is None else (status.name, MEANINGS[status])
    )


def _known(code: int) -> Status | None:
    try:
        return Status(code)
    except ValueError:
        return None
