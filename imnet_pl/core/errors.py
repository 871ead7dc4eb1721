"""The error for users."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A problem that the user can cure: the command line prints its one sentence and no traceback."""


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the allowed name that is closest to ``name``, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def require_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless a value is one of those allowed.

    Raises:
        UserError: It names the argument, its value, what is allowed and the nearest of it.
    """
    choices = list(allowed)
    if value not in choices:
        hint = nearest_hint(str(value), choices)
        raise UserError(f"{name}={value!r} must be one of {', '.join(choices)}.{hint}")


def some_of(names: Iterable[str], most: int = 5) -> str:
    """Return the first ``most`` names, comma separated, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


class UsageError(UserError):
    """A command line or config that can not be understood: exit status 2."""
