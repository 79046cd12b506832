"""Methods by name, found through an entry-point group that anybody's package can add to."""

from importlib.metadata import EntryPoint, entry_points

from decodebench.decoding.decoder import Method
from decodebench.errors import UserError, first_line, unknown

GROUP = "decodebench.methods"


def method_names() -> list[str]:
    """Names of all installed methods, sorted."""
    return sorted(_entries())


def method(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        UserError: when there is no method of that name, or what its package brings is none.
    """
    entries = _entries()
    if name not in entries:
        raise unknown("method", name, entries)
    entry = entries[name]
    try:
        found = entry.load()
    except Exception as error:  # a stranger's module can fail in any way
        raise UserError(f"method '{name}' ({entry.value}) cannot be loaded: {first_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method '{name}' ({entry.value}) is not a subclass of decodebench.decoding.Method")
    return found


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
