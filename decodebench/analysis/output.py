"""Files that an analysis writes where the user asked for them."""

from pathlib import Path

from decodebench.errors import UserError


def write_output(path: Path, content: bytes) -> None:
    """Write a file that is complete before it is begun, creating its folder if need be.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from None
