"""weir's userfaultfd paging beside stock mmap, under the same hard memory limit.

The limit is that of a memory cgroup (v1 or v2) and counts everything: weights, page cache, KV cache, page tables. Arms
take turns, each run starts with the model's pages out of the page cache, in a fresh cgroup and a session of its own. The
uffd arm is told to stay 16 MiB below the limit, which is what the kernel charges besides the process's own memory; the
mmap arm is told nothing, as nothing but the limit bounds it. Both must produce the same logits."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
# Left to the kernel's charges under the hard limit: page tables, stacks, the program's own file pages.
KERNEL_BYTES = 16 * MIB
ARMS = ('uffd', 'mmap')


class CannotLimit(Exception):
    """One line: why no memory cgroup can be made here."""


class Cgroup:
    """A memory cgroup with a hard limit, removed when the with-block ends, however it ends."""

    def __init__(self, limit_bytes):
        self.v1, parent = memory_hierarchy()
        self.path = os.path.join(parent, f'weir-compare-{os.getpid()}')
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

    def peak_bytes(self):
        """None where the kernel does not say (v2 before 5.19)."""
        try:
            return int(self._read('memory.max_usage_in_bytes' if self.v1 else 'memory.peak'))
        except OSError:
            return None

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
        print(f'compare_mmap: {self.path} cannot be removed', file=sys.stderr)

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


def read_ahead_kb(path):
    """Of the device that the file lies on: it decides how mmap fares. None where there is no such device."""
    device = os.stat(path).st_dev
    folder = os.path.realpath(f'/sys/dev/block/{os.major(device)}:{os.minor(device)}')
    for candidate in (folder, os.path.dirname(folder)):  # a partition's queue is its disk's
        try:
            with open(candidate + '/queue/read_ahead_kb') as file:
                return int(file.read())
        except OSError:
            pass
    return None


def run_once(options, arm, limit_bytes):
    """One run in a cgroup of its own: what weir says of it, and what the cgroup saw."""
    command = [os.environ['WEIR_BIN'], 'run', options.model, '-p', options.prompt, '-n', str(options.tokens),
               '-c', str(options.context), '-t', str(options.threads), '--temp', '0', '--ignore-eos', '--paging', arm,
               '--json']
    if arm == 'uffd':
        command += ['--ram', str(limit_bytes - KERNEL_BYTES)]
    drop_cache(options.model)
    with Cgroup(limit_bytes) as cgroup:
        with cgroup.spawn(command) as process:
            try:
                out, err = process.communicate()
            except BaseException:
                process.kill()
                raise
        result = {'exit': process.returncode, 'cgroup_peak_bytes': cgroup.peak_bytes(), 'oom_kills': cgroup.oom_kills()}
    if process.returncode == 0:
        said = json.loads(out)
        result |= {'tokens_per_s': said['timings']['decode_tokens_per_s'],
                   'bytes_per_token': said['paging']['io_read_bytes_per_token'],
                   'faults_per_token': said['paging']['faults_per_token'],
                   'peak_rss_bytes': said['memory']['peak_rss_bytes'],
                   'bounded_by': said['paging']['bounded_by'],
                   'logits_hash': said['logits_hash']}
    else:
        last = err.strip().splitlines()[-1:] or [f'killed by signal {-process.returncode}']
        result['error'] = 'killed by the memory limit' if result['oom_kills'] else last[0]
    return result


def median(runs, key):
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def summarise(percent, limit_bytes, runs):
    """runs: arm -> its runs at this limit."""
    row = {'limit_percent': percent, 'limit_bytes': limit_bytes}
    for arm in ARMS:
        peaks = [run['cgroup_peak_bytes'] for run in runs[arm] if run['cgroup_peak_bytes'] is not None]
        row[arm] = {'tokens_per_s': median(runs[arm], 'tokens_per_s'),
                    'bytes_per_token': median(runs[arm], 'bytes_per_token'),
                    'faults_per_token': median(runs[arm], 'faults_per_token'),
                    'peak_rss_bytes': max((run.get('peak_rss_bytes', 0) for run in runs[arm])),
                    'cgroup_peak_bytes': max(peaks, default=None),
                    'oom_kills': sum(run['oom_kills'] for run in runs[arm]),
                    'errors': sorted({run['error'] for run in runs[arm] if 'error' in run}),
                    'runs': runs[arm]}
    fast, slow = (row[arm]['tokens_per_s'] for arm in ARMS)
    row['ratio'] = fast / slow if fast and slow else None
    row['same_logits'] = len({run.get('logits_hash') for arm in ARMS for run in runs[arm]}) == 1
    return row


def show(number, form, scale=1):
    return '-' if number is None else format(number / scale, form)


def print_table(rows):
    columns = ('limit', 'paging', 'tokens/s', 'MB read/token', 'faults/token', 'peak of cgroup', 'OOM kills', 'bounded by')
    form = '{:>16} {:>7} {:>9} {:>14} {:>13} {:>15} {:>10}  {}'
    print(form.format(*columns))
    for row in rows:
        limit = f'{row["limit_percent"]} % {row["limit_bytes"] // MIB} MiB'
        for arm in ARMS:
            of = row[arm]
            bounds = sorted({run['bounded_by'] for run in of['runs'] if 'bounded_by' in run})
            print(form.format(limit, arm, show(of['tokens_per_s'], '.2f'), show(of['bytes_per_token'], '.1f', 1e6),
                              show(of['faults_per_token'], '.1f'), show(of['cgroup_peak_bytes'], '.0f', MIB) + ' MiB',
                              of['oom_kills'], ', '.join(bounds) or '-').rstrip())
            for error in of['errors']:
                print(f'{"":>16} {arm:>7} failed: {error}')
            limit = ''
        if row['ratio']:
            print(f'{"":>16} uffd is {row["ratio"]:.2f} times as fast as mmap; '
                  f'the logits are {"the same" if row["same_logits"] else "NOT THE SAME"}')


def percents(text):
    values = [int(word) for word in text.replace(',', ' ').split()]
    if not values or any(not 1 <= value <= 1000 for value in values):
        raise argparse.ArgumentTypeError('percents of the file size, such as "75 50"')
    return values


def parse_arguments():
    parser = argparse.ArgumentParser(prog='compare_mmap.sh', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('model', nargs='?', help='a GGUF file')
    parser.add_argument('--limits', type=percents, default=[75, 50], help='in percent of the file (default "75 50")')
    parser.add_argument('--tokens', type=int, default=24, help='decoded in each run (default 24)')
    parser.add_argument('--runs', type=int, default=3, help='of each arm at each limit (default 3)')
    parser.add_argument('--threads', type=int, default=os.cpu_count(), help='default: all CPUs')
    parser.add_argument('--context', type=int, default=512, help='tokens of KV cache (default 512)')
    parser.add_argument('--prompt', default='Once upon a time')
    parser.add_argument('--json', action='store_true', help='one object instead of a table, with each run in it')
    parser.add_argument('--probe', action='store_true', help='only say whether a memory cgroup can be made here')
    options = parser.parse_args()
    if not options.probe:
        if options.model is None:
            parser.error('a model is needed')
        if not os.path.isfile(options.model):
            parser.error(f'no such file: {options.model}')
        if min(options.tokens, options.runs, options.threads, options.context) < 1:
            parser.error('counts are positive')
        if not os.access(os.environ['WEIR_BIN'], os.X_OK):
            parser.error(f'{os.environ["WEIR_BIN"]} is not built: scripts/demo.sh builds it, or name one in WEIR_BIN')
    return options


def main():
    options = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    if options.probe:
        with Cgroup(256 * MIB) as cgroup:
            return cgroup.spawn(['true']).wait()
    size = os.path.getsize(options.model)
    ahead = read_ahead_kb(options.model)
    rows = []
    for percent in options.limits:
        limit_bytes = size * percent // 100
        runs = {arm: [] for arm in ARMS}
        for turn in range(options.runs):
            for arm in ARMS:
                print(f'{percent} % of {size // MIB} MiB, {arm}, run {turn + 1} of {options.runs} ...', end='',
                      file=sys.stderr, flush=True)
                result = run_once(options, arm, limit_bytes)
                runs[arm].append(result)
                print(' ' + result.get('error', f'{result.get("tokens_per_s", 0):.2f} tokens/s'), file=sys.stderr)
        rows.append(summarise(percent, limit_bytes, runs))

    if options.json:
        print(json.dumps({'model': os.path.abspath(options.model), 'model_bytes': size, 'tokens': options.tokens,
                          'threads': options.threads, 'read_ahead_kb': ahead, 'limits': rows}, indent=1))
    else:
        print(f'{os.path.basename(options.model)}, {size // MIB} MiB, {options.tokens} tokens, {options.threads} threads, '
              f'medians of {options.runs} runs in turn, read-ahead of the device {ahead} KiB')
        print_table(rows)
    good = all(row['same_logits'] and not row[arm]['errors'] for row in rows for arm in ARMS)
    return 0 if good else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except CannotLimit as reason:
        sys.exit(f'compare_mmap.sh: {reason}')
    except KeyboardInterrupt:
        sys.exit(130)
