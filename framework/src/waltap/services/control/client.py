"""Send the requests of commands to a running pipeline."""

from pathlib import Path

from waltap.base.files.lock_file import holder
from waltap.ports.offsets.state_folder import CONTROL, LOCK
from waltap.services.control.protocol import (
    ControlAnswer,
    ControlSocketUnusable,
    PipelineNotRunning,
    Request,
    address,
    answered,
    asked,
    unix_socket,
)

PATIENCE_S = 10.0
"""Time for an answer beyond the request's own ``wait_ms``."""


def ask(folder: Path, request: Request, *, patience_s: float = PATIENCE_S) -> ControlAnswer:
    """Send a request to a pipeline and return its answer.

    ``folder`` is the pipeline's state folder. The answer may take ``patience_s`` beyond the time
    that the request waits.

    Raises: PipelineNotRunning, ControlSocketUnusable.
    """
    pid = holder(folder / LOCK)
    path = folder / CONTROL
    if pid is None:
        # a killed process leaves its socket file behind
        left = "; the control socket there is a dead process's" if path.is_socket() else ""
        raise PipelineNotRunning(f"no process runs the pipeline of {folder}{left}")
    try:
        with unix_socket() as connection, address(path) as name:
            connection.settimeout(PATIENCE_S)
            connection.connect(name)
            connection.settimeout(patience_s + request.wait_ms / 1000)
            connection.sendall(asked(request))
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        why = "time is up" if isinstance(error, TimeoutError) else error.strerror or error
        raise ControlSocketUnusable(f"process {pid} cannot be reached at {path}: {why}") from error
    try:
        return answered(line)
    except ValueError as error:
        said = "ended without an answer" if not line else "gave an answer that is none"
        raise ControlSocketUnusable(f"process {pid}, at {path}, {said}") from error
