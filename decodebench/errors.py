"""The one exception that stands for a user's mistake."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user asked for; its message is one line naming the culprit and the remedy.

    The command line prints it on stderr without a traceback and exits with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not there, with the nearest match or, failing that, the names there are.

    Args:
        kind: what the name should have been ("method", "task", …).
        name: what was asked for.
        known: the names that exist.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return UserError(f"unknown {kind} '{name}': did you mean '{close[0]}'?")
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return UserError(f"unknown {kind} '{name}': choose from {shown}" if names else f"unknown {kind} '{name}'")


def first_line(error: BaseException) -> str:
    """The first line with text of an error's message, else the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
