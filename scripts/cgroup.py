"""A memory cgroup (v1 or v2) around a program, for scripts that check what it does under a hard limit. `weir bench paging`
makes its own."""
import os
import re
import subprocess
import sys
import time


class CannotLimit(Exception):
    """One line: why no memory cgroup can be made here."""


class Cgroup:
    """A memory cgroup with a hard limit, removed when the with-block ends, however it ends."""

    def __init__(self, limit_bytes):
        self.v1, parent = memory_hierarchy()
        self.path = os.path.join(parent, f'weir-check-{os.getpid()}')
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise CannotLimit(f'no memory cgroup can be made in {parent}: {error.strerror}') from error
        try:
            self._write('memory.limit_in_bytes' if self.v1 else 'memory.max', limit_bytes)
            self._write_if_there('memory.memsw.limit_in_bytes' if self.v1 else 'memory.swap.max',
                                 limit_bytes if self.v1 else 0)
        except OSError as error:
            self.remove()
            raise CannotLimit(f'the memory limit of {self.path} cannot be set: {error.strerror}') from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def spawn(self, command):
        """Starts the command inside: it enters before exec, so that nothing of the program is charged elsewhere."""
        def enter():
            os.setsid()
            try:  # the scheduler's best weight for this session, so that the rest of the machine hurts less
                with open('/proc/self/autogroup', 'w') as file:
                    file.write('-15')
            except OSError:
                pass
            self._write('cgroup.procs', 0)

        try:
            return subprocess.Popen(command, preexec_fn=enter, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)
        except subprocess.SubprocessError as error:
            raise CannotLimit(f'no process may enter {self.path}') from error

    def oom_kills(self):
        found = re.search(r'^oom_kill (\d+)$', self._read('memory.oom_control' if self.v1 else 'memory.events'), re.M)
        return int(found[1]) if found else 0

    def remove(self):
        """A cgroup is busy for a moment after its last process is gone."""
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
        print(f'cgroup: {self.path} cannot be removed', file=sys.stderr)

    def _read(self, name):
        with open(os.path.join(self.path, name)) as file:
            return file.read()

    def _write(self, name, value):
        with open(os.path.join(self.path, name), 'w') as file:
            file.write(str(value))

    def _write_if_there(self, name, value):
        if os.path.exists(os.path.join(self.path, name)):
            self._write(name, value)


def memory_hierarchy(mounts='/proc/self/mounts'):
    """(is it v1, the folder in which a memory cgroup is made)."""
    v2 = None
    with open(mounts) as lines:
        for line in lines:
            _, folder, kind, options = line.split()[:4]
            if kind == 'cgroup' and 'memory' in options.split(','):
                return True, folder
            if kind == 'cgroup2':
                v2 = v2 or folder
    if v2 is None:
        raise CannotLimit('no cgroup file system is mounted')
    with open(os.path.join(v2, 'cgroup.controllers')) as file:
        if 'memory' not in file.read().split():
            raise CannotLimit(f'{v2} has no memory controller')
    control = os.path.join(v2, 'cgroup.subtree_control')
    with open(control) as file:
        enabled = file.read().split()
    if 'memory' not in enabled:
        try:
            with open(control, 'w') as file:
                file.write('+memory')
        except OSError as error:
            raise CannotLimit(f'memory cannot be enabled in {control}: {error.strerror}') from error
    return False, v2


def drop_cache(path):
    """Only clean pages leave the page cache, so what was just written is written out first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
