#!/usr/bin/env python3
"""Has systemd check the units that are installed: no word that it does not know, and an exposure below 3. Prints TAP.

usage: units_test.py WEIR UNIT..."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

MOST_EXPOSED = 3.0


def main():
    weir, units = os.path.abspath(sys.argv[1]), sys.argv[2:]
    if not shutil.which('systemd-analyze'):
        if os.environ.get('WEIR_REQUIRE_MATERIAL') == '1':
            print('1..1\nnot ok 1 - systemd-analyze is required, and not here')
        else:
            print('1..0 # SKIP systemd-analyze is not here')
        return 0
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for unit in units:
            paths.append(os.path.join(folder, os.path.basename(unit)))
            with open(unit) as text, open(paths[-1], 'w') as out:
                # What is not installed yet is looked for where it was built.
                out.write(re.sub(r'^(ExecStart=)\S+/weir ', rf'\1{weir} ', text.read(), flags=re.M))
        services = [p for p in paths if p.endswith('.service')]
        print(f'1..{1 + len(services)}')

        def say(number, right, what, detail):
            print(f'{"ok" if right else "not ok"} {number} - {what}')
            if not right:
                print('\n'.join('# ' + line for line in detail.split('\n')))
        done = subprocess.run(['systemd-analyze', 'verify', *paths], capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        say(1, done.returncode == 0 and not said.strip(), 'systemd-analyze verify has nothing to say', said)
        for number, path in enumerate(services, 2):
            done = subprocess.run(['systemd-analyze', 'security', '--offline=true', '--no-pager', path], capture_output=True, text=True, check=False)
            found = re.search(r'Overall exposure level for \S+ ([\d.]+)', done.stdout)
            say(number, found and float(found[1]) < MOST_EXPOSED,
                f'{os.path.basename(path)}: exposure {found[1] if found else "unknown"}, less than {MOST_EXPOSED}', done.stdout + done.stderr)
    return 0


if __name__ == '__main__':
    sys.exit(main())
