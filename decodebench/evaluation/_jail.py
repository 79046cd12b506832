"""The walls around untrusted code: what this process gives up, step by step, before the code may run.

Runs in the sandbox's own process, with nothing but the standard library (see `sandbox` for the whole picture).
A step that the system refuses leaves its wall down and is reported so; no step is ever undone.
"""

import contextlib
import ctypes
import os
import resource
import site
import sys
from collections.abc import Callable, Iterator

MEBIBYTE = 1 << 20
MAX_FILE = 16 * MEBIBYTE  # of one file
MAX_OPEN_FILES = 64
SCRATCH_OPTIONS = "size=64m,nr_inodes=4096,mode=777"

# linux/sched.h, sys/mount.h, linux/mount.h, linux/prctl.h
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 442, -100, 0x8000, 0x1, 0x2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SIGKILL = 9
CAPABILITY_VERSION_3 = 0x20080522

NOBODY = 65534
FIRST_FREE_UID = 1 << 24  # far above every real account


def _call(name: str, *args: object) -> None:
    """A call into libc that raises OSError where it fails or does not exist."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError:
        raise OSError(f"no {name} on this system") from None
    if function(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode())


def confine(scratch: str, memory_mb: int, seconds: int, libraries: list[str]) -> dict[str, bool]:
    """Put up every wall that this system allows around this process and its future children.

    Args:
        scratch: an empty folder of our own; the code's working folder, or the root of the file system it sees.
        memory_mb: limit of the address space, in MiB, of each process.
        seconds: limit of CPU time of each process.
        libraries: folders of packages outside the standard library that the code may import.

    Returns: for each wall (see `sandbox.protections`) whether it stands.
    """
    walls: dict[str, bool] = {}

    def put_up(wall: str, step: Callable[[], None]) -> None:
        try:
            step()
            walls[wall] = True
        except (OSError, ValueError):  # ValueError: a limit that the system does not take
            walls[wall] = False

    root = os.getuid() == 0
    if not root:
        put_up("user namespace", _enter_user_namespace)
    put_up("network", lambda: _call("unshare", CLONE_NEWNET))
    put_up("processes", lambda: _call("unshare", CLONE_NEWPID))
    put_up("shared memory", lambda: _call("unshare", CLONE_NEWIPC))
    put_up("files", lambda: _enter_empty_root(scratch, libraries))
    put_up("memory", lambda: _limit(resource.RLIMIT_AS, memory_mb * MEBIBYTE))
    put_up("cpu", lambda: _limit(resource.RLIMIT_CPU, seconds))
    put_up("file size", lambda: _limit(resource.RLIMIT_FSIZE, MAX_FILE))
    put_up("open files", lambda: _limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES))
    put_up("core dumps", lambda: _limit(resource.RLIMIT_CORE, 0))
    if not walls["files"]:
        os.chdir(scratch)
        _link_libraries(scratch, libraries)
    if root:
        _become_nobody(scratch, walls)
    put_up("privileges", _drop_privileges)
    with contextlib.suppress(OSError):  # nobody of the same user may trace or read us
        _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    return walls


def forbid_new_processes() -> None:
    """No further process or thread from here on (root is exempt, hence `confine` first)."""
    _limit(resource.RLIMIT_NPROC, 0)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; to be called after the last change of user."""
    with contextlib.suppress(OSError):
        _call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def _limit(which: int, value: int) -> None:
    resource.setrlimit(which, (value, value))


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _visible() -> Iterator[str]:
    """What the code may see, read-only: the interpreter, the shared libraries it may need, harmless devices."""
    shown: list[str] = []
    for folder in ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/nix/store", "/gnu/store", sys.base_prefix):
        if os.path.exists(folder) and not any(f"{folder}/".startswith(f"{parent}/") for parent in shown):
            shown.append(folder)
            yield folder
    yield from ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def _enter_empty_root(root: str, libraries: list[str]) -> None:
    """Make a small file system in memory the root: only what `_visible` names, and a bounded /tmp to write to."""
    _call("unshare", CLONE_NEWNS)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID, "size=1m,mode=755")
    for path in _visible():
        _show(path, root + path)
    for path in libraries:
        _show(path, f"{root}/libraries/{os.path.basename(path)}")
    for path in site.getsitepackages():
        if os.path.isdir(root + path):  # other people's packages: some hold the answers
            _mount("tmpfs", root + path, "tmpfs", MS_NOSUID | MS_NODEV, "size=0,mode=755")
    if not os.path.exists(root + os.__file__):
        raise FileNotFoundError("the standard library lies somewhere else")
    os.mkdir(f"{root}/tmp")
    read_only = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    arguments = (AT_FDCWD, os.fsencode(root), AT_RECURSIVE, read_only, ctypes.c_size_t(32))
    _call("syscall", SYS_MOUNT_SETATTR, *arguments)
    _mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, SCRATCH_OPTIONS)
    os.chroot(root)  # also ends the making of further user namespaces
    os.chdir("/tmp")
    os.environ.update(HOME="/tmp", TMPDIR="/tmp")
    sys.path.append("/libraries")


def _show(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, target, None, MS_BIND | MS_REC)


def _link_libraries(scratch: str, libraries: list[str]) -> None:
    folder = f"{scratch}/.libraries"
    os.mkdir(folder)
    for path in libraries:
        os.symlink(path, f"{folder}/{os.path.basename(path)}")
    sys.path.append(folder)


def _become_nobody(scratch: str, walls: dict[str, bool]) -> None:
    """Leave root for a user that owns nothing and, where there are enough ids, that no other sandbox shares."""
    for user in (FIRST_FREE_UID + os.getpid(), NOBODY):
        try:
            if not walls["files"]:
                os.chown(scratch, user, user)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            break
        except OSError:
            continue
    if os.getuid() == 0 or not os.access(os.__file__, os.R_OK):
        raise PermissionError(
            "cannot leave root and still reach Python: run as an ordinary user, or install Python outside root's home"
        )


def _drop_privileges() -> None:
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
