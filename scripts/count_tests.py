#!/usr/bin/env python3
"""Counts what `meson test` ran, case by case, and prints one line: N passed, N failed, N skipped.

usage: count_tests.py [--must-run SUITE BUILD]... [--also-failed N] [BUILD]...

Each BUILD is a build folder whose meson-logs are read: testlog.json says how each program ended, testlog.junit.xml which
cases it had. A program without cases counts as one; one that ended badly although its cases passed (a sanitizer's report
at exit, a crash) adds a failure, and so does a folder in which nothing ran. --must-run makes each skipped case of that
suite a failure, because meson calls a program whose cases were skipped OK; the suite must have run something, too.
Exit status: 1 where anything failed or nothing passed."""
import argparse
import collections
import json
import pathlib
import sys
import xml.etree.ElementTree as xml

GOOD = {'OK', 'EXPECTEDFAIL'}


def outcome(case):
    if case.find('failure') is not None or case.find('error') is not None:
        return 'failed'
    if case.find('skipped') is not None or case.get('status') == 'notrun':
        return 'skipped'
    return 'passed'


def programs(build):
    """(name, result, {case: outcome}) of each program that the last `meson test` in this folder ran."""
    logs = pathlib.Path(build) / 'meson-logs'
    if not (logs / 'testlog.json').exists():
        return
    lines = (logs / 'testlog.json').read_text().splitlines()
    tests = [json.loads(line) for line in lines]
    suites = xml.parse(logs / 'testlog.junit.xml').getroot().findall('testsuite')
    for test in tests:
        # The suites of a program with cases are named PROJECT.NAME or PROJECT.NAME.SUITE.
        cases = {}
        for suite in suites:
            name = suite.get('name').partition('.')[2]
            if name == test['name'] or name.startswith(test['name'] + '.'):
                for case in suite.findall('testcase'):
                    cases[f"{name[len(test['name']) + 1:]}.{case.get('name')}".lstrip('.')] = outcome(case)
        yield test['name'], test['result'], cases


def in_suite(name, suite):
    head = name.split(' / ')[0]  # "PROJECT:SUITE+SUITE / TEST"
    return ':' in head and suite in head.split(':', 1)[1].split('+')


def count(build, must_run, complaints):
    """passed, failed, skipped of one build. must_run: the suite of which nothing may be skipped, or None."""
    total = collections.Counter()
    ran = 0  # cases that passed in the suite that must run
    for name, result, cases in programs(build):
        here = collections.Counter(cases.values())
        if not cases:
            here['skipped' if result == 'SKIP' else 'passed' if result in GOOD else 'failed'] += 1
        elif result not in GOOD and result != 'SKIP' and not here['failed']:
            here['failed'] += 1
            complaints.append(f'{build}: {name}: its cases passed, but it ended with {result}')
        if must_run and in_suite(name, must_run):
            ran += here['passed']
            if here['skipped']:
                skipped = [case for case, how in cases.items() if how == 'skipped'] or ['all of it']
                complaints.append(f'{build}: {name}: skipped, but suite {must_run} is required: {", ".join(skipped)}')
                here['failed'] += here.pop('skipped')
        total += here
    if not total:
        complaints.append(f'{build}: no test ran')
        total['failed'] += 1
    elif must_run and not ran:
        complaints.append(f'{build}: nothing of the required suite {must_run} passed')
        total['failed'] += 1
    return total


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--must-run', nargs=2, action='append', default=[])
    parser.add_argument('--also-failed', type=int, default=0)
    parser.add_argument('builds', nargs='*')
    options = parser.parse_args()

    complaints = []
    total = collections.Counter(failed=options.also_failed)
    for suite, build in options.must_run + [[None, build] for build in options.builds]:
        total += count(build, suite, complaints)
    for complaint in complaints:
        print(complaint)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total['failed'] or not total['passed'] else 0


if __name__ == '__main__':
    sys.exit(main())
