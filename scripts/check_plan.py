#!/usr/bin/env python3
"""Holds `weir plan` to what `weir run` then does.

At 90, 75, 50 and 25 % of the model file (--ram), plan measures the device and says what to expect, and right after it the
model is run with the same budget. One line each: tokens/s expected and measured, their ratio, bytes per token and resident
bytes by both, what bounds both. Exit status 1 where a speed is off by more than --within, or bytes by more than 2 % and what the ring, which is full at the beginning of
the count and not filled again at its end, makes of so few tokens.

Free of the model's file cache, as a run is: reads are direct where the file system takes them."""
import argparse
import json
import os
import subprocess
import sys

MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir', help='the program')
    parser.add_argument('model', help='a GGUF file')
    parser.add_argument('--limits', default='90 75 50 25', help='per cent of the file (default: 90 75 50 25)')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--context', type=int, default=256)
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--tokens', type=int, default=24)
    parser.add_argument('--prompt', default='Once upon a time')
    parser.add_argument('--within', type=float, default=15, help='per cent that the speed may be off (default: 15)')
    parser.add_argument('--repeat', type=int, default=1, help='rounds over all limits')
    return parser.parse_args()


def weir(options, *arguments):
    done = subprocess.run([options.weir, *arguments, '--json'], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f'weir {" ".join(arguments)}: exit status {done.returncode}: {done.stderr.strip()}')
    return json.loads(done.stdout)


def measured_speed(said):
    """Without the first tokens, where the run tells of them apart."""
    steady = said.get('steady')
    return steady['tokens'] / steady['seconds'] if steady else said['timings']['decode_tokens_per_s']


def main():
    options = parse_arguments()
    shape = ['-c', str(options.context), '-t', str(options.threads), '-b', str(options.batch)]
    size = os.path.getsize(options.model)
    bad = 0
    for percent in [int(p) for p in options.limits.split()] * options.repeat:
        ram = str(size * percent // 100)
        plan = weir(options, 'plan', options.model, '--ram', ram, *shape)
        said = weir(options, 'run', options.model, '--ram', ram, *shape, '-p', options.prompt, '-n', str(options.tokens), '--temp', '0',
                    '--ignore-eos', '-q')
        expected, paging = plan['plan'], said['paging']
        ratio = measured_speed(said) / expected['tokens_per_s']
        read, resident = (paging[key] / max(1, expected[key]) for key in ('bytes_read_per_token', 'resident_bytes'))
        off = ['speed'] if abs(ratio - 1) > options.within / 100 else []
        off += [key for key in ('bytes_read_per_token', 'resident_bytes')
                if abs(paging[key] - expected[key]) > 0.02 * expected[key] + expected['ring_bytes'] / max(1, options.tokens - 2)]
        bad += bool(off)
        print(f'{percent:3} %  expected {expected["tokens_per_s"]:6.2f} tokens/s, measured {measured_speed(said):6.2f}: {ratio:5.2f}   '
              f'bytes per token {expected["bytes_read_per_token"] / MIB:7.1f} MiB: {read:5.3f}   resident '
              f'{expected["resident_bytes"] / MIB:7.1f} MiB: {resident:5.3f}   {expected["bounded_by"]} / {paging["bounded_by"]}   '
              f'device {plan["device"]["bytes_per_s"] / 1e9:.2f} GB/s, kernels {plan["kernels"]["bytes_per_s"] / 1e9:.2f} GB/s   '
              f'{", ".join(off) + " off" if off else "ok"}', flush=True)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
