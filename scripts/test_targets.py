#!/usr/bin/env python3
"""Prints the files that the tests of some suites need, for ninja to build.

usage: test_targets.py BUILD SUITE..."""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.check_output(['meson', 'introspect', f'--{what}', build]))


def main():
    build, wanted = sys.argv[1], set(sys.argv[2:])
    tests = [t for t in introspect(build, 'tests') if wanted & {suite.split(':')[-1] for suite in t['suite']}]
    if not tests:
        sys.exit(f"test_targets.py: {build} has no tests of {', '.join(sorted(wanted))}")
    needed = {target for test in tests for target in test['depends']}
    for target in introspect(build, 'targets'):
        if target['id'] in needed:
            print(*(os.path.relpath(file, build) for file in target['filename']))


if __name__ == '__main__':
    main()
