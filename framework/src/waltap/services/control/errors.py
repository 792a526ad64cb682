"""Errors of commands that do not reach a pipeline."""

from waltap.errors import OffsetError, RetryVerdict

__all__ = ["ControlSocketUnusable", "PipelineNotRunning", "ReplayUndone"]


class PipelineNotRunning(OffsetError):
    """No process runs the pipeline that a command is for."""

    code = "WT-6201"
    remedy = (
        "Start it with `waltap run FILE`, on this machine, and ask again. A profile names its pipeline by "
        "`name` and `waltap.state.dir`: they must be those that the process was started with."
    )


class ControlSocketUnusable(OffsetError):
    """A process runs the pipeline, and its control socket does not answer."""

    code = "WT-6202"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "Only the user that runs the pipeline may use the socket, and only on the same machine. Where it "
        "has just started, ask again; what the log of the run says of its control socket tells more. "
        "Signals can also be given by the table of signal.data.collection, or by the file of signal.file."
    )


class ReplayUndone(OffsetError):
    """A running pipeline did not deliver all of the requested dead letters."""

    code = "WT-6205"
    remedy = (
        "What is listed as delivered is. See what the log of the run says, mend it, and give the command "
        "again: letters that were delivered are left alone. A snapshot, or a sink that is away, is "
        "waited for with --wait SECONDS; a pipeline that is stopped is replayed by the command itself."
    )
