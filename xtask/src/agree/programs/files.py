# Each call that changes a file, in its usual and in its unusual forms, good and bad.
import ctypes
import os
import socket
import stat

libc = ctypes.CDLL(None, use_errno=True)


def attempt(what, *arguments, **named):
    try:
        value = what(*arguments, **named)
        if isinstance(value, int) and what is os.open:
            os.close(value)
        print(what.__name__, "ok")
    except OSError as error:
        print(what.__name__, error.errno)


os.mkdir("real", 0o755)
os.symlink("real", "link")
os.symlink("nowhere", "dangling")
os.symlink("loop", "loop")
for name in ["a", "link/b", "./real/../real//c", "dangling", "loop", "real", "none/x", "a/x", ""]:
    attempt(os.open, name, os.O_WRONLY | os.O_CREAT, 0o644)
    attempt(os.open, name, os.O_RDWR)
    attempt(os.open, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    attempt(os.open, name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    attempt(os.open, name, os.O_WRONLY | os.O_APPEND | os.O_SYNC)
attempt(os.open, "real", os.O_RDWR | os.O_TMPFILE, 0o600)
attempt(os.open, "/proc/self/fd/1", os.O_WRONLY)
attempt(os.open, "/dev/null", os.O_RDWR)
attempt(os.open, "x" * 300, os.O_WRONLY | os.O_CREAT)
attempt(os.open, "/" + "x/" * 3000, os.O_WRONLY | os.O_CREAT)
folder = os.open("real", os.O_RDONLY)
for follow in [True, False]:
    for name in ["link/b", "link", "dangling", "missing", "loop"]:
        attempt(os.chown, name, os.getuid(), -1, follow_symlinks=follow)
        attempt(os.utime, name, follow_symlinks=follow)
        attempt(os.utime, name, (1, 2), follow_symlinks=follow)
        attempt(os.setxattr, name, "user.test", b"x", follow_symlinks=follow)
        attempt(os.removexattr, name, "user.test", follow_symlinks=follow)
        if follow:
            attempt(os.chmod, name, 0o755)
            attempt(os.truncate, name, 10)
attempt(os.chmod, "b", 0o600, dir_fd=folder)
attempt(os.mkdir, "sub", 0o700, dir_fd=folder)
attempt(os.mkdir, "sub", 0o700, dir_fd=folder)
attempt(os.mkdir, "link/sub/", 0o700)
attempt(os.mkdir, "sub/deeper/", dir_fd=folder)
attempt(os.rmdir, "link/sub")
attempt(os.rmdir, "deeper", dir_fd=os.open("real/sub", os.O_RDONLY))
attempt(os.rmdir, "link")
attempt(os.rmdir, "real/.")
attempt(os.unlink, "real")
attempt(os.rename, "b", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
attempt(os.rename, "link/renamed", "link/c")
attempt(os.rename, "link/none", "a")
attempt(os.rename, "real", "real/inside")
attempt(os.replace, "a", "link/a")
attempt(os.link, "link/a", "hard")
attempt(os.link, "dangling", "hard-dangling", follow_symlinks=False)
attempt(os.link, "none", "hard2")
attempt(os.symlink, "text with spaces", "a link", dir_fd=folder)
attempt(os.symlink, "x", "link")
attempt(os.mkfifo, "fifo", 0o600)
attempt(os.mknod, "plain", stat.S_IFREG | 0o640)
attempt(os.mknod, "plain", stat.S_IFREG | 0o640)
with open("opened", "w") as file:
    attempt(os.fchmod, file.fileno(), 0o640)
    attempt(os.fchown, file.fileno(), os.getuid(), -1)
    attempt(os.utime, file.fileno())
    attempt(os.setxattr, file.fileno(), "user.other", b"y")
    attempt(os.removexattr, file.fileno(), "user.other")
    os.unlink("opened")
    attempt(os.fchmod, file.fileno(), 0o600)
    attempt(os.open, f"/proc/self/fd/{file.fileno()}", os.O_RDWR)
# The calls that python does not use.
libc.creat(b"created", 0o644)
libc.syscall(82, b"created", b"created.2")  # rename
libc.syscall(316, -100, b"created.2", -100, b"plain", 2)  # renameat2, exchange
libc.syscall(316, -100, b"created.2", -100, b"plain", 1)  # renameat2, no replace
libc.syscall(90, b"link/c", 0o604)  # chmod
libc.syscall(94, b"link", os.getuid(), -1)  # lchown
libc.syscall(132, b"link/c", None)  # utime
libc.syscall(235, b"link/c", None)  # utimes
libc.syscall(261, -100, b"link/c", None)  # futimesat
libc.open(None, os.O_WRONLY)
libc.unlink(None)
os.mkdir("deleted")
os.chdir("deleted")
os.rmdir("../deleted")
attempt(os.open, "in-nothing", os.O_WRONLY | os.O_CREAT)
attempt(os.mkdir, "in-nothing")
os.chdir("..")
os.fchdir(folder)
attempt(os.open, "after-fchdir", os.O_WRONLY | os.O_CREAT)
