"""The exception family of the firmware bridge. Every message is one line that says what, where and what to do.

``LinkError`` and its subclasses are about the link to the controller. ``RefusedError`` and its subclasses are responses
of the controller, one class per SCMI status. ``NotVerifiedError`` means that an accepted request was not in force when
it was read back.
"""

from __future__ import annotations

from firmware_bridge.scmi.messages.status import MEANINGS, Status


class ScmiError(Exception):
    """An error between an agent and its controller."""


class RequestError(ScmiError):
    """The request is invalid for this controller; nothing was sent."""


class MessageError(ScmiError):
    """The bytes are not an SCMI message, or the values do not fit into one."""


class UnknownMessageError(MessageError):
    """A well-formed header of a message that this dialect does not contain."""


class LinkError(ScmiError):
    """The link to the controller cannot be opened, or is lost."""


class NoAnswerError(LinkError):
    """No valid response within the time and number of tries."""


class WrongDeviceError(LinkError):
    """The device at the other end is not a supported SCMI platform."""


class NotVerifiedError(ScmiError):
    """The controller accepted a request, but reports another value when it is read back."""


class RefusedError(ScmiError):
    """The platform responded with an error status; the earlier settings stay in force."""

    status: Status | None = None

    def __init__(self, request: str, code: int, hint: str = "") -> None:
        self.request = request
        self.code = code
        self.hint = hint
        name, meaning = named_status(code)
        super().__init__(f"{request}: {name}: {meaning}{f'; {hint}' if hint else ''}")

    def with_hint(self, hint: str) -> RefusedError:
        """The same refusal with details that the caller knows: the domain's name, its range."""
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
    """Still BUSY after all retries."""

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
    """The error class for a status code. A code outside the standard becomes a plain ``RefusedError``."""
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
