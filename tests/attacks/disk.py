# SPDX-License-Identifier: Apache-2.0
"""A disk that fails: a directory that shows another one through FUSE, of which the attack decides how each operation
ends. Speaks the kernel's protocol itself (linux/fuse.h, version 7.31), so that it needs root and /dev/fuse and no
package. One thread serves all requests. Names and attributes are not cached, and pages not after the file is closed."""

import ctypes
import errno
import os
import struct
import threading

from trial import Skip

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 4, 5, 6, 9, 10, 11, 12
LINK, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR = 13, 14, 15, 16, 17, 18, 20, 25, 26, 27
READDIR, RELEASEDIR, FSYNCDIR, CREATE, INTERRUPT, DESTROY, BATCH_FORGET = 28, 29, 30, 35, 36, 38, 42
FALLOCATE, RENAME2 = 43, 45

READS = (LOOKUP, GETATTR, OPEN, READ, OPENDIR, READDIR)
WRITES = (CREATE, MKDIR, WRITE, FALLOCATE, FSYNC, FSYNCDIR, UNLINK, RMDIR, RENAME, RENAME2, LINK, SETATTR)
DROPPED = 0  # the error of a write that is reported as done

_ROOT, _MAX_WRITE, _MNT_FORCE, _MNT_DETACH = 1, 1 << 17, 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def _called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _open_out(handle):
    # Not with FOPEN_DIRECT_IO: Linux (6.18) then answers a read of io_uring whose second part fails with wrong bytes.
    return struct.pack("<QII", handle, 0, 0)


class Disk:
    """In a `with`: `mount` shows `source`. Descriptors of the source keep inodes, which renames and deletions leave."""

    def __init__(self, source, mount):
        self.source, self.mount = source, mount
        self.hidden, self.forgotten = set(), set()  # names that are not there yet; that are listed and no longer there
        self.heal()

    def fail(self, operations, error, first, count=1 << 30):
        """The operations with the numbers first, first + 1, ... among `operations`, `count` of them, end so."""
        self._operations, self._error, self._first, self._count, self._seen = operations, error, first, count, 0
        self.failures = 0

    def heal(self):
        self.fail((), 0, 0)
        self.hidden, self.forgotten = set(), set()

    def __enter__(self):
        os.makedirs(self.source, exist_ok=True)
        os.makedirs(self.mount, exist_ok=True)
        try:
            self._fuse = os.open("/dev/fuse", os.O_RDWR)
            _called(_libc.mount(b"faulty", os.fsencode(self.mount), b"fuse", 0,
                                f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0".encode()))
        except OSError as error:
            raise Skip(f"must be root, to mount a disk that fails by /dev/fuse: {error.strerror}") from error
        root = os.open(self.source, os.O_PATH)
        self._nodes, self._numbers, self._handles = {_ROOT: root}, {self._key(root): _ROOT}, {}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        for flag in (_MNT_FORCE, _MNT_DETACH):
            _libc.umount2(os.fsencode(self.mount), flag)
        self._thread.join()
        for fd in [self._fuse, *self._nodes.values()] + [fd for fd in self._handles.values() if isinstance(fd, int)]:
            os.close(fd)

    def _serve(self):
        while True:
            try:
                request = os.read(self._fuse, 2 * _MAX_WRITE)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue  # of a request that was interrupted
                return  # it is not mounted any more
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            try:
                reply, status = self._answer(opcode, node, request[40:]), 0
            except OSError as error:
                reply, status = b"", -error.errno
            except Exception:  # an operation that is not here must not hang its caller
                reply, status = b"", -errno.EIO
            if reply is not None:
                try:
                    os.write(self._fuse, struct.pack("<IiQ", 16 + len(reply), status, unique) + reply)
                except OSError:
                    pass  # the caller has gone

    def _answer(self, opcode, node, body):
        if opcode in self._operations:
            number, self._seen = self._seen, self._seen + 1
            if self._first <= number < self._first + self._count:
                self.failures += 1
                if self._error != DROPPED:
                    raise OSError(self._error, "")
                if opcode == WRITE:
                    return struct.pack("<II", *struct.unpack_from("<I", body, 16), 0)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        return self._FUNCTIONS.get(opcode, Disk._unknown)(self, node, body)

    def _unknown(self, _node, _body):
        raise OSError(errno.ENOSYS, "")

    def _init(self, _node, _body):
        big_writes = 1 << 5
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, _MAX_WRITE, big_writes, 16, 12, _MAX_WRITE, 1, 0, 0, 0)

    def _done(self, _node, _body):
        return b""

    @staticmethod
    def _key(fd):
        info = os.fstat(fd)
        return info.st_dev, info.st_ino

    @staticmethod
    def _path(fd):
        return f"/proc/self/fd/{fd}"

    @staticmethod
    def _names(text):
        return text.rstrip(b"\0").split(b"\0")

    def _attributes(self, fd):
        i = os.fstat(fd)
        times = [divmod(t, 10**9) for t in (i.st_atime_ns, i.st_mtime_ns, i.st_ctime_ns)]
        return struct.pack("<6Q10I", i.st_ino, i.st_size, i.st_blocks, *(t[0] for t in times), *(t[1] for t in times),
                           i.st_mode, i.st_nlink, i.st_uid, i.st_gid, 0, 4096, 0)

    def _entry(self, parent, name):
        text = name.decode("utf-8", "surrogateescape")
        if text in self.hidden:
            raise OSError(errno.ENOENT, "")
        if text in self.forgotten:
            raise OSError(errno.ESTALE, "")
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[parent])
        number = self._numbers.setdefault(self._key(fd), len(self._nodes) + 1)
        if number in self._nodes:
            os.close(fd)
        else:
            self._nodes[number] = fd
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(self._nodes[number])

    def _lookup(self, node, body):
        return self._entry(node, self._names(body)[0])

    def _getattr(self, node, _body):
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._nodes[node])

    def _setattr(self, node, body):
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        mode, = struct.unpack_from("<I", body, 68)
        if valid & 8:
            os.truncate(self._path(self._nodes[node]), size)
        if valid & 1:
            os.chmod(self._path(self._nodes[node]), mode & 0o7777)
        return self._getattr(node, body)

    def _readlink(self, node, _body):
        return os.readlink(b"", dir_fd=self._nodes[node])

    def _symlink(self, node, body):
        name, target = self._names(body)
        os.symlink(target, name, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _mkdir(self, node, body):
        mode, umask = struct.unpack_from("<II", body)
        name = self._names(body[8:])[0]
        os.mkdir(name, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _unlink(self, node, body):
        os.unlink(self._names(body)[0], dir_fd=self._nodes[node])
        return b""

    def _rmdir(self, node, body):
        os.rmdir(self._names(body)[0], dir_fd=self._nodes[node])
        return b""

    def _rename(self, node, body):
        return self._rename_to(node, struct.unpack_from("<Q", body)[0], 0, body[8:])

    def _rename2(self, node, body):
        directory, flags, _ = struct.unpack_from("<QII", body)
        return self._rename_to(node, directory, flags, body[16:])

    def _rename_to(self, node, directory, flags, names):
        old, new = self._names(names)
        _called(_libc.renameat2(self._nodes[node], old, self._nodes[directory], new, flags))
        return b""

    def _link(self, node, body):
        old, name = struct.unpack_from("<Q", body)[0], self._names(body[8:])[0]
        os.link(self._path(self._nodes[old]), name, dst_dir_fd=self._nodes[node], follow_symlinks=True)
        return self._entry(node, name)

    def _keep(self, handle):
        number = max(self._handles, default=0) + 1
        self._handles[number] = handle
        return _open_out(number)

    def _open(self, node, body):
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_DIRECT | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)
        return self._keep(os.open(self._path(self._nodes[node]), flags))

    def _create(self, node, body):
        flags, mode, umask, _ = struct.unpack_from("<IIII", body)
        name = self._names(body[16:])[0]
        fd = os.open(name, flags & ~os.O_DIRECT | os.O_CREAT, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name) + self._keep(fd)

    def _handle(self, body):
        return self._handles[struct.unpack_from("<Q", body)[0]]

    def _read(self, _node, body):
        offset, size = struct.unpack_from("<QI", body, 8)
        return os.pread(self._handle(body), size, offset)

    def _write(self, _node, body):
        offset, size = struct.unpack_from("<QI", body, 8)
        return struct.pack("<II", os.pwrite(self._handle(body), body[40:40 + size], offset), 0)

    def _release(self, _node, body):
        handle = self._handles.pop(struct.unpack_from("<Q", body)[0])
        if isinstance(handle, int):
            os.close(handle)
        return b""

    def _fallocate(self, _node, body):
        offset, length, mode = struct.unpack_from("<QQI", body, 8)
        _called(_libc.fallocate(self._handle(body), mode, ctypes.c_long(offset), ctypes.c_long(length)))
        return b""

    def _statfs(self, node, _body):
        i = os.statvfs(self._path(self._nodes[node]))
        return struct.pack("<5Q3I28x", i.f_blocks, i.f_bfree, i.f_bavail, i.f_files, i.f_ffree, i.f_bsize, i.f_namemax,
                           i.f_frsize)

    def _opendir(self, node, _body):
        fd = os.open(self._path(self._nodes[node]), os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                return self._keep([(os.fsencode(e.name), e.inode()) for e in entries if e.name not in self.hidden])
        finally:
            os.close(fd)

    def _readdir(self, _node, body):
        offset, size = struct.unpack_from("<QI", body, 8)
        found = b""
        for i, (name, inode) in enumerate(self._handle(body)[offset:], offset + 1):
            entry = struct.pack("<QQII", inode, i, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    _FUNCTIONS = {INIT: _init, LOOKUP: _lookup, GETATTR: _getattr, SETATTR: _setattr, READLINK: _readlink,
                  SYMLINK: _symlink, MKDIR: _mkdir, UNLINK: _unlink, RMDIR: _rmdir, RENAME: _rename, RENAME2: _rename2,
                  LINK: _link, OPEN: _open, CREATE: _create, READ: _read, WRITE: _write, RELEASE: _release,
                  RELEASEDIR: _release, FALLOCATE: _fallocate, STATFS: _statfs, OPENDIR: _opendir, READDIR: _readdir,
                  FSYNC: _done, FSYNCDIR: _done, FLUSH: _done, DESTROY: _done}
