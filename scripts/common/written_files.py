"""Files that scripts write: complete or unchanged after a crash, and never in place of a device or a pipe."""

import contextlib
import errno
import os
import stat


class NotAFile(OSError):
    """Something that is not a regular file is where a file is to be written."""


def target_of(path):
    """Returns the path with links resolved, so that a link keeps its name. Raises NotAFile, an OSError, if a device, a
    pipe or a folder is there: replacing /dev/null by a file would harm every other program."""
    path = os.path.realpath(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return path
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device or a socket"
        raise NotAFile(errno.EINVAL, f"is a {kind}, not a file that can be written", path)
    return path


@contextlib.contextmanager
def writing(path, mode):
    """Opens a file for writing. An OSError of a write or a sync, which has no name, gets the file's."""
    try:
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
    except OSError as error:
        if error.strerror and error.filename is None:
            error.filename = path
        raise


# Some file systems sync no folders (SMB, some of FUSE and 9p): a rename is then as durable as they make it.
UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def sync_folder(folder):
    """Syncs `folder` to disk, which makes renames in it durable, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, folder) from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path, mode="w", durable=True):
    """Opens a new file for writing, which replaces `path` at the end of the block, if `durable` synced to disk. If the
    block fails, `path` keeps its content."""
    path = target_of(path)
    staged = path + ".staged"
    with contextlib.suppress(FileNotFoundError):
        target_of(staged)
        os.remove(staged)  # of a run that was killed
    try:
        with writing(staged, mode.replace("w", "x")) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(staged)
        raise


def check_target(path):
    """Raises an OSError if `path` evidently cannot be written, before work begins."""
    path = target_of(path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", folder)
    # A name that the file system refuses, such as one that is too long with its suffix, fails here.
    with contextlib.suppress(FileNotFoundError):
        os.lstat(path + ".staged")
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
