#!/usr/bin/env python3
"""Values that were drawn within random schemas, by the rules of another validator; prints TAP.

usage: schema_test.py SCHEMA_SAMPLES     WEIR_TEST_SEED draws others"""
import datetime
import json
import os
import subprocess
import sys
import urllib.parse

import jsonschema

COUNT = 400
# Those that Python itself can tell; some that come with the package want packages of their own.
FORMATS = jsonschema.FormatChecker(formats=('date', 'email', 'ipv4', 'ipv6', 'uuid'))
FORMATS.checks('date-time', ValueError)(lambda text: bool(datetime.datetime.fromisoformat(text)))
FORMATS.checks('time', ValueError)(lambda text: datetime.time.fromisoformat(text).tzinfo is not None)
FORMATS.checks('uri', ValueError)(lambda text: bool(urllib.parse.urlsplit(text).hostname))


def main():
    seed = int(os.environ.get('WEIR_TEST_SEED', '1'))
    lines = subprocess.run([sys.argv[1], str(seed), str(COUNT)], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()
    wrong, ended = [], 0
    for line in lines:
        sample = json.loads(line)
        if not sample['text']:
            continue  # it did not come to an end in time
        ended += 1
        try:
            jsonschema.Draft202012Validator(sample['schema'], format_checker=FORMATS).validate(json.loads(sample['text']))
        except (ValueError, jsonschema.ValidationError) as error:
            wrong.append((sample['seed'], sample['text'][:200], str(error).split('\n')[0]))
    print('1..2')
    print(f'{"not ok" if wrong else "ok"} 1 - values drawn within {len(lines)} random schemas validate (seed {seed})')
    for one in wrong[:5]:
        print('#', one)
    enough = len(lines) == COUNT and ended >= 0.95 * COUNT
    print(f'{"ok" if enough else "not ok"} 2 - and nearly all come to an end: {ended}')


if __name__ == '__main__':
    sys.exit(main())
