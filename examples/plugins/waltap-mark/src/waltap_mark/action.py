"""A signal that marks where the pipeline is: a notification with a label and the position.

The rules that the tests check: data may be anything, and what will not do is SignalUnusable with the
reason; the action does not wait, since it runs between two batches.
"""

from waltap.ports.signals import SignalCall, SignalUnusable

LONGEST = 200


def act(call: SignalCall) -> None:
    """Send the notification: `waltap signal FILE mark '{"label": "before the release"}'`."""
    label = call.arguments.get("label")
    if not isinstance(label, str) or not 0 < len(label) <= LONGEST:
        raise SignalUnusable(f"label must be a text of at most {LONGEST} characters")
    call.notify("MARKED", label=label, position=call.position)
