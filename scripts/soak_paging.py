#!/usr/bin/env python3
"""Lets weir generate for a long time while its budget goes up and down, and watches that it keeps to it.

weir runs in a memory cgroup of its own (v1 or v2; root, or a delegated group) whose hard limit is the largest budget and what
the kernel charges besides. Its budget changes every few seconds to a random value, by --budget-script. Every 100 ms VmRSS
of the process and the usage of the cgroup are read; neither may be above the budget in force, where a smaller one is in
force half a second after it was set. Of the cgroup's usage, page cache and the kernel's own charges do not count (they
are in no budget); the largest raw usage is reported beside it.

At the end the first tokens are compared with those of a run with all weights in memory. One line per figure; exit status
1 where anything does not hold."""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

from cgroup import CannotLimit, Cgroup, drop_cache

MIB = 1 << 20
# Left to the kernel's charges under the hard limit: page tables, stacks, the program's own file pages.
KERNEL_BYTES = 16 * MIB
SAMPLE_S = 0.1
GRACE_S = 0.5
CHANGE = re.compile(r'^weir: budget=([0-9.]+)MiB frames=')


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir', help='the program')
    parser.add_argument('model', help='a GGUF file')
    parser.add_argument('--seconds', type=float, default=600, help='default: 600')
    parser.add_argument('--least', type=int, default=25, help='smallest budget, percent of the file (default: 25)')
    parser.add_argument('--most', type=int, default=90, help='largest budget, percent of the file (default: 90)')
    parser.add_argument('--period', type=float, default=5, help='mean seconds between changes (default: 5)')
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--context', type=int, default=2048)
    parser.add_argument('--seed', type=int, default=None, help='of the budgets (default: random, and reported)')
    parser.add_argument('--json', action='store_true', help='one object instead of lines')
    parser.add_argument('weir_options', nargs='*', help='after --: options for weir run, such as --install copy')
    return parser.parse_args()


def make_script(options, size, seed):
    """[(seconds, bytes)]: budgets for longer than the soak takes, as a run may begin late."""
    chance = random.Random(seed)
    steps, at = [], chance.uniform(1, 3)
    while at < options.seconds + 60:
        steps.append((at, size * chance.randint(options.least * 10, options.most * 10) // 1000))
        # Now and then several in a row, faster than frames can come and go.
        at += chance.choice((0.05, 0.3)) if chance.random() < 0.15 else chance.uniform(0.4, 1.6) * options.period
    return steps


class Budget:
    """What is in force at a moment: the initial budget, and what weir says on stderr when it changes it."""

    def __init__(self, initial):
        self.changes = [(0.0, initial)]
        self.lock = threading.Lock()
        self.other_lines = []

    def follow(self, stream):
        for line in stream:
            found = CHANGE.match(line.strip())
            with self.lock:
                if found:
                    self.changes.append((time.monotonic(), float(found[1]) * MIB))
                else:
                    self.other_lines.append(line.strip())

    def allowed(self, now):
        """The largest of the budgets that were in force within the grace."""
        with self.lock:
            current = self.changes[-1][1]
            for index in range(len(self.changes) - 1, 0, -1):
                if now - self.changes[index][0] > GRACE_S:
                    break
                current = max(current, self.changes[index - 1][1])
            return current


def vm_rss(pid):
    with open(f'/proc/{pid}/status') as file:
        found = re.search(r'^VmRSS:\s+(\d+) kB', file.read(), re.M)
    return int(found[1]) * 1024 if found else None


def numbers(path):
    with open(path) as file:
        return {key: int(value) for key, value in (line.split()[:2] for line in file)}


def cgroup_usage(cgroup):
    """(all, without page cache and the kernel's charges)."""
    stat = numbers(os.path.join(cgroup.path, 'memory.stat'))
    with open(os.path.join(cgroup.path, 'memory.usage_in_bytes' if cgroup.v1 else 'memory.current')) as file:
        usage = int(file.read())
    return usage, stat['total_rss'] if cgroup.v1 else stat['anon']


def soak(options, cgroup, command, initial):
    """Runs until the time is up, again where an answer ends before; samples all the while."""
    end = time.monotonic() + options.seconds
    result = {'runs': 0, 'samples': 0, 'changes': 0, 'above': [], 'tokens': 0, 'largest_rss_bytes': 0,
              'largest_usage_bytes': 0, 'least_slack_bytes': None, 'ids': None, 'errors': []}
    while time.monotonic() < end and not result['errors']:
        budget = Budget(initial)
        process = cgroup.spawn(command)
        out = []
        readers = [threading.Thread(target=budget.follow, args=(process.stderr,)),
                   threading.Thread(target=lambda: out.append(process.stdout.read()))]
        for reader in readers:
            reader.start()
        while process.poll() is None:
            time.sleep(SAMPLE_S)
            try:
                rss = vm_rss(process.pid)
                usage, counted = cgroup_usage(cgroup)
            except (FileNotFoundError, ProcessLookupError):
                continue
            now = time.monotonic()
            if rss is None:
                continue
            allowed = budget.allowed(now)
            result['samples'] += 1
            result['largest_rss_bytes'] = max(result['largest_rss_bytes'], rss)
            result['largest_usage_bytes'] = max(result['largest_usage_bytes'], usage)
            slack = allowed - max(rss, counted)
            if result['least_slack_bytes'] is None or slack < result['least_slack_bytes']:
                result['least_slack_bytes'] = slack
            if slack < 0:
                result['above'].append(f'{max(rss, counted) / MIB:.1f} MiB (VmRSS {rss / MIB:.1f}), budget {allowed / MIB:.1f} MiB')
            if now >= end:
                process.send_signal(signal.SIGINT)
                end = float('inf')  # one signal is enough; the loop above ends by the flag below
                result['time_is_up'] = True
        for reader in readers:
            reader.join()
        if process.returncode not in (0, 128 + signal.SIGINT):
            result['errors'].append(f'exit status {process.returncode}: {(budget.other_lines or ["(nothing)"])[-1]}')
            break
        said = json.loads(out[0])
        result['runs'] += 1
        result['tokens'] += len(said['ids'])
        result['changes'] += said['memory']['budget_changes']
        result['warnings'] = [line for line in budget.other_lines if 'warning' in line]
        if result['ids'] is None:
            result['ids'] = said['ids']
        if result.pop('time_is_up', False):
            break
    result['oom_kills'] = cgroup.oom_kills()
    return result


def main():
    options = parse_arguments()
    size = os.path.getsize(options.model)
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    steps = make_script(options, size, seed)
    initial = size * (options.least + options.most) // 200
    common = [options.weir, 'run', options.model, '-p', 'Once upon a time', '-c', str(options.context), '-t',
              str(options.threads), '--temp', '0', '--ignore-eos', '--json']
    script = ','.join(f'{round(at * 1000)}ms:{size}' for at, size in steps)
    # What the script asks for is what is in force, unless --pressure on is asked for: then less may be.
    pressure = [] if '--pressure' in options.weir_options else ['--pressure', 'off']
    command = common + ['-n', '-1', '--ram', str(initial), '--budget-script', script, *pressure, *options.weir_options]
    drop_cache(options.model)
    with Cgroup(size * options.most // 100 + KERNEL_BYTES) as cgroup:
        result = soak(options, cgroup, command, initial)
    ids = result.pop('ids') or []
    reference = subprocess.run(common + ['-n', str(min(32, len(ids))), '--paging', 'resident'], capture_output=True, text=True,
                               check=False, stdin=subprocess.DEVNULL)
    expected = json.loads(reference.stdout)['ids'] if reference.returncode == 0 else None
    complaints = result['errors'] + [f'above the budget: {line}' for line in result['above'][:10]]
    if expected is None or not ids or expected != ids[:len(expected)]:
        complaints.append('the tokens are not those of a resident run')
    if result['oom_kills']:
        complaints.append(f'{result["oom_kills"]} kills by the limit')
    if result['changes'] == 0:
        complaints.append('the budget never changed')
    result |= {'seed': seed, 'complaints': complaints}
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f'{result["runs"]} runs, {result["tokens"]} tokens, {result["changes"]} budget changes (seed {seed}), '
              f'{result["samples"]} samples, {len(result["above"])} above the budget')
        print(f'VmRSS at most {result["largest_rss_bytes"] / MIB:.1f} MiB, cgroup usage at most '
              f'{result["largest_usage_bytes"] / MIB:.1f} MiB with page cache; least slack {(result["least_slack_bytes"] or 0) / MIB:.1f} MiB')
        for line in complaints:
            print(f'complaint: {line}')
        print('all holds' if not complaints else f'{len(complaints)} complaints')
    return 1 if complaints else 0


if __name__ == '__main__':
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    try:
        sys.exit(main())
    except CannotLimit as reason:
        sys.exit(f'soak_paging: {reason}')
    except KeyboardInterrupt:
        sys.exit(130)
