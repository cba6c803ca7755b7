#!/usr/bin/env python3
"""Compiles each header alone, as the first and only thing in a file, with warnings as errors; prints TAP.

usage: check_headers.py ROOT COMPILER [ARGUMENT]...                   checks the tree
       check_headers.py --self-test COMPILER [ARGUMENT]...            checks that a header which leans on others is found"""
import concurrent.futures
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ('kernels', 'pager', 'schedtool', 'runtime', 'tests', 'bench')
# Headers of one instruction set are compiled as its library is: by the compiler at hand where the machine is of that kind,
# by Debian's cross compiler elsewhere, and not at all where there is none.
ISA = {'kernels/avx2_': ('x86_64', ['-mavx2', '-mfma', '-mf16c']),
       'kernels/dpbusd': ('x86_64', ['-mavx2', '-mfma', '-mf16c', '-mavxvnni']),
       'kernels/neon_': ('aarch64', [])}
FLAGS = ['-std=c++20', '-D_GNU_SOURCE', '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-fsyntax-only']


def headers(root):
    return sorted(p.relative_to(root).as_posix() for folder in FOLDERS for p in (root / folder).rglob('*.h'))


def complaint(root, compiler, header):
    """What the compiler says of the header; empty where it says nothing, None where there is no compiler for it. Included
    twice, to try #pragma once."""
    text = f'#include "{header}"\n#include "{header}"\n'
    isa = []
    for prefix, (machine, flags) in ISA.items():
        if not header.startswith(prefix):
            continue
        isa = flags
        if machine != platform.machine():
            compiler = [shutil.which(f'{machine}-linux-gnu-g++')]
    if compiler == [None]:
        return None
    done = subprocess.run([*compiler, *FLAGS, *isa, '-I', str(root), '-x', 'c++', '-'], input=text, text=True,
                          capture_output=True, check=False)
    return done.stderr if done.returncode else ''


def check(root, compiler):
    names = headers(root)
    if not names:
        print(f'Bail out! no headers under {root}')
        return
    print(f'1..{len(names)}')
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda name: complaint(root, compiler, name), names)
        for number, (name, text) in enumerate(zip(names, said), 1):
            print(f'{"not ok" if text else "ok"} {number} - {name}' + (' # SKIP no compiler for it' if text is None else ''))
            for line in (text or '').splitlines()[:20]:
                print('# ' + line)


def self_test(compiler):
    cases = (
        ('stands alone', True, '#pragma once\n#include <vector>\ninline std::vector<int> f() { return {}; }\n'),
        ('leans on an include', False, '#pragma once\ninline std::vector<int> f() { return {}; }\n'),
        ('leans on another header', False, '#pragma once\ninline Other f();\n'),
        ('can be included once only', False, 'struct Once {};\n'),
        ('warns', False, '#pragma once\ninline int f(int unused) { return 0; }\n'),
    )
    print(f'1..{len(cases)}')
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / 'pager').mkdir()
        for number, (what, good, text) in enumerate(cases, 1):
            (root / 'pager/case.h').write_text(text)
            right = headers(root) == ['pager/case.h'] and (complaint(root, compiler, 'pager/case.h') == '') == good
            print(f'{"ok" if right else "not ok"} {number} - a header that {what} {"passes" if good else "fails"}')


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == '--self-test':
        self_test(sys.argv[2:])
    else:
        check(pathlib.Path(sys.argv[1]), sys.argv[2:])
