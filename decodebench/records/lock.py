"""A lock that one process holds on a folder, and that the system releases when that process dies."""

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(error.errno, error.strerror) from None
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def acquire(path: Path) -> int:
    """Lock the file `path`, creating it if need be, without waiting.

    Returns:
        A file descriptor; closing it releases the lock. The file stays: removing it would let two processes lock
        two different files of that name.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened for writing, or the file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _try_lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
