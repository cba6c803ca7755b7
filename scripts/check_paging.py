#!/usr/bin/env python3
"""Shows on one model that paging changes nothing but where the weights are, and that the budget holds.

At 90, 75, 50 and 25 %, with 1 and 2 threads, weir runs the same prompt
  - by userfaultfd with gates and without, and by an advised mapping, --ram being that share of the model file, in a memory
    cgroup (v1 or v2) whose hard limit is the very same number where one may be made, by mmap, and with all weights resident;
and it is checked that
  - text and logits are the same everywhere;
  - the process stays at or below its budget (VmHWM), and nothing is killed by the limit;
  - from the third token on, with gates, bytes read per token are at most 1.05 x (M - R) and nothing faults;
  - the ring is at most max(8 Extents, 3 % of M).
One line per run; exit status 1 where anything does not hold."""
import argparse
import json
import os
import subprocess
import sys

from cgroup import CannotLimit, Cgroup, drop_cache

MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir', help='the program')
    parser.add_argument('model', help='a GGUF file')
    parser.add_argument('--limits', default='90 75 50 25', help='per cent of the file (default: 90 75 50 25)')
    parser.add_argument('--threads', default='1 2')
    parser.add_argument('--tokens', type=int, default=8)
    parser.add_argument('--context', type=int, default=256)
    parser.add_argument('--prompt', default='Once upon a time')
    parser.add_argument('--weights-only', action='store_true',
                        help='--weights-ram instead of --ram, and no cgroup: for models so small that the program is larger')
    return parser.parse_args()


def run(options, threads, mode, extra=(), limit=None):
    command = [options.weir, 'run', options.model, '-p', options.prompt, '-n', str(options.tokens), '-c',
               str(options.context), '-t', str(threads), '--temp', '0', '--ignore-eos', '--paging', mode, '--json', *extra]
    drop_cache(options.model)
    kills = 0
    if limit is None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        with Cgroup(limit) as cgroup:
            with cgroup.spawn(command) as process:
                out, err = process.communicate()
            status, kills = process.returncode, cgroup.oom_kills()
    if status != 0 or kills:
        last = (err.strip().splitlines() or ['(nothing)'])[-1]
        return None, f'exit status {status}, {kills} kills by the limit: {last}'
    return json.loads(out), None


def complaints(said, reference, gates):
    paging, memory = said['paging'], said['memory']
    found = []
    if (said['text'], said['logits_hash']) != reference:
        found.append('text or logits differ')
    if memory['budget_bytes'] is None:
        return found
    if memory['peak_rss_bytes'] > memory['budget_bytes']:
        found.append(f'{memory["peak_rss_bytes"]} bytes of memory, budget {memory["budget_bytes"]}')
    if paging['ring_bytes'] > max(8 * paging['extent_bytes'], 0.03 * paging['pass_bytes']):
        found.append('the ring is too large')
    if gates:
        most = 1.05 * paging['must_read_bytes_per_token']
        for key in ('bytes_read_per_token', 'io_read_bytes_per_token'):
            if paging[key] > most:
                found.append(f'{key} {paging[key]:.0f}, at most {most:.0f}')
        if paging['faults_per_token'] != 0:
            found.append(f'{paging["faults_per_token"]} faults per token')
    return found


def main():
    options = parse_arguments()
    limited = not options.weights_only
    if limited:
        try:
            with Cgroup(1 << 30):
                pass
        except CannotLimit as reason:
            print(f'no hard limit: {reason}')
            limited = False
    bad = 0

    def show(name, said, error, reference, gates=True):
        nonlocal bad
        found = [error] if error else complaints(said, reference, gates)
        bad += bool(found)
        figures = ''
        if said:
            p, m = said['paging'], said['memory']
            budget = f' of {m["budget_bytes"] / MIB:.1f}' if m['budget_bytes'] else ''
            figures = (f'{said["timings"]["decode_tokens_per_s"]:7.2f} tokens/s  {p["io_read_bytes_per_token"] / MIB:8.1f} MiB/token '
                       f'{p["faults_per_token"]:6.1f} faults/token  peak {m["peak_rss_bytes"] / MIB:.1f}{budget} MiB')
        print(f'{name:34} {figures}  {"; ".join(found) if found else "ok"}', flush=True)

    first, error = run(options, 2, 'resident')
    if error:
        sys.exit(f'resident run: {error}')
    reference = (first['text'], first['logits_hash'])
    for threads in map(int, options.threads.split()):
        show(f'resident, {threads} threads', *run(options, threads, 'resident'), reference)
        show(f'mmap, {threads} threads', *run(options, threads, 'mmap'), reference)
        for percent in map(int, options.limits.split()):
            limit = os.path.getsize(options.model) * percent // 100
            budget = ['--weights-ram', f'{percent}%'] if options.weights_only else ['--ram', str(limit)]
            for mode, gates in (('uffd', 'on'), ('uffd', 'off'), ('advised', 'on')):
                said, error = run(options, threads, mode, [*budget, '--gates', gates], limit if limited else None)
                show(f'{mode} {percent} %, {threads} threads, gates {gates}', said, error, reference, gates == 'on')
    print(f'{bad} runs with complaints' if bad else 'all runs hold')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
