#!/usr/bin/env python3
"""Holds what a level of a native file reads to what it may read, by --trace-io.

usage: check_planes.py WEIR MODEL.weir [--levels 8,6,4,3,2] [--weights-ram 25%] [--tokens N]

The model is run at each level with too little memory, every read of it is listed, and each byte is looked up among the
planes (runtime/model/native_format.h): a read that touches a run of a plane that the level does not use, another level's
scales among them, is named. An embedding that is the head has its rows, one for each token, looked up at 8 bits whatever the
head is read at, page by page: what such reads take is counted apart, and may not be more than that. Printed are the reads and
bytes of each level, and what the file takes beside the same weights in Q8_0. Exit status 1 where a byte was read that the
level does not need, or the file takes more than Q8_0 and 15 %."""
import argparse
import bisect
import json
import pathlib
import subprocess
import sys
import tempfile

# Runs of a band in the order of the file: their planes, and the levels that read them.
RUNS = [(('S3',), {3}), (('P2',), {3, 4, 6, 8}), (('P1',), {2, 3, 4, 6, 8}), (('S2',), {2}), (('S4', 'P3'), {4, 6, 8}),
        (('P4a',), {6, 8}), (('P4b',), {8})]
WHOLE = {'S': 16, 'P1': 64, 'P2': 32, 'P3': 32, 'P4a': 64, 'P4b': 64}  # bytes of 256 weights


def row_bytes(plane, cols):
    """Of one row in a plane; a last super-block of n groups of 32 is shorter."""
    kind = plane[0] if plane[0] == 'S' else plane
    groups = cols % 256 // 32
    short = 0 if groups == 0 else 4 + (3 * groups + 1) // 2 if kind == 'S' else WHOLE[kind] // 8 * groups
    return cols // 256 * WHOLE[kind] + short


def runs_of(said):
    """(offset, end, planes, levels, tensor) of every run of the file, by offset."""
    page, out = said['page'], []
    for tensor in said['tensors']:
        if not tensor['planes']:
            continue
        cols, rows, experts = (tensor['shape'] + [1])[:3]
        at = tensor['offset']
        for _ in range(experts):
            for first in range(0, rows, tensor['band_rows']):
                band = min(tensor['band_rows'], rows - first)
                for planes, levels in RUNS:
                    size = band * sum(row_bytes(plane, cols) for plane in planes)
                    end = at + -(-size // page) * page
                    out.append((at, end, planes, levels, tensor['name']))
                    at = end
    return sorted(out)


def read_at(options, level, trace):
    """(offset, bytes) of each read, and how many tokens were looked up at most."""
    command = [options.weir, 'run', options.model, '-p', 'Once upon a time', '-n', str(options.tokens), '-c', '64', '--json',
               '--precision', str(level), '--weights-ram', options.weights_ram, '--trace-io', str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)}: {done.stderr.strip()}')
    reads = [tuple(map(int, line.split())) for line in trace.read_text().splitlines() if line[:1].isdigit()]
    return reads, len(json.loads(done.stdout)['prompt_ids']) + options.tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir')
    parser.add_argument('model')
    parser.add_argument('--levels', default='8,6,4,3,2')
    parser.add_argument('--weights-ram', default='25%')
    parser.add_argument('--tokens', type=int, default=4)
    options = parser.parse_args()
    said = json.loads(subprocess.run([options.weir, 'inspect', options.model, '--json'], capture_output=True, text=True,
                                     check=True).stdout)
    runs = runs_of(said)
    starts = [run[0] for run in runs]
    bad, looked_up = 0, 2 * said['page']  # a row of a plane lies on two pages at most
    with tempfile.TemporaryDirectory() as folder:
        for level in map(int, options.levels.split(',')):
            reads, tokens = read_at(options, level, pathlib.Path(folder) / 'reads')
            foreign, rows = {}, 0
            for offset, size in reads:
                i = max(0, bisect.bisect_right(starts, offset) - 1)
                while i < len(runs) and runs[i][0] < offset + size:
                    start, end, planes, levels, tensor = runs[i]
                    touched = min(end, offset + size) - max(start, offset)
                    if touched > 0 and level not in levels and tensor == 'token_embd.weight' and size <= looked_up:
                        rows += touched
                    elif touched > 0 and level not in levels:
                        foreign['+'.join(planes)] = foreign.get('+'.join(planes), 0) + touched
                    i += 1
            others = sum(level not in levels for _, levels in RUNS)
            if rows > tokens * others * looked_up:
                foreign['an embedding, more than its tokens take'] = rows
            total = sum(size for _, size in reads)
            found = ', '.join(f'{size} bytes of {planes}' for planes, size in foreign.items())
            print(f'level {level}: {len(reads)} reads, {total} bytes; {found or "none"} that it does not need'
                  f'{f", {rows} bytes of other planes for rows of the embedding" if rows else ""}', flush=True)
            bad += bool(foreign) or not reads
    head = said['file_bytes'] - said['stored_bytes']  # metadata, tokenizer, tensors that are kept: the same in any format
    ratio = said['file_bytes'] / (said['weights'] * 34 / 32 + head)
    print(f'{said["file_bytes"]} bytes, {ratio:.3f} of the same in Q8_0 (1.15 allowed)')
    return 1 if bad or ratio > 1.15 else 0


if __name__ == '__main__':
    sys.exit(main())
