#!/usr/bin/env python3
"""Reads the sources and fails on what the house does not allow; prints TAP, one line per rule.

usage: check_tree.py ROOT           checks the tree
       check_tree.py --self-test    makes bad trees and checks that each rule finds what was planted, and nothing else

A rule takes a Tree and yields one line for each thing that is wrong."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LEAVES = ('kernels', 'pager', 'schedtool')
# Folder -> folders that it may include. tests, bench and scripts may use anything; nothing uses them.
EDGES = {leaf: {leaf} for leaf in LEAVES} | {'runtime': {'runtime', *LEAVES}}
PRODUCT = tuple(EDGES)
SOURCES = PRODUCT + ('tests', 'bench')
# Headers of libraries that stay behind a room's own .cc files, so that whoever includes the room does not need them.
PRIVATE = re.compile(r'<(liburing|boost/|spdlog/|fmt/|numa)')
MAX_LINES = 600
# What lies at the root, besides dot files.
TOP_LEVEL = {*SOURCES, 'scripts', 'meson.build', 'meson_options.txt', 'README.md', 'LICENSE'}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|(<[^>]+>))', re.M)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
# 4096, 4'096, 0x1000, with any suffix: written where a page size was meant, and pages differ.
PAGE_LITERAL = re.compile(r"(?<![\w.'])(4'?096|0[xX]1'?000)[uUlLzZ]*(?![\w.'])")
# A folder of somebody's machine. /tmp, /proc, /sys, /dev, /usr and /etc mean the same everywhere.
MACHINE_PATH = re.compile(r'(?<![\w.$~*})/-])/(?:home|root|Users|work|farm|mnt|media|srv)/\w')


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.texts = {}  # path from the root -> text
        for name in self._names():
            try:
                self.texts[name] = (self.root / name).read_text()
            except (UnicodeDecodeError, FileNotFoundError):
                pass  # a binary (fuzz corpus), or deleted and not committed yet

    def _names(self):
        """What git knows or would take; everything that is there in a tree without git (a tarball)."""
        if (self.root / '.git').exists() and shutil.which('git'):
            listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                                    cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if listed.returncode == 0:
                return sorted(set(listed.stdout.decode().split('\0')) - {''})
        found = (p for p in self.root.rglob('*') if p.is_file())
        names = (p.relative_to(self.root).as_posix() for p in found)
        return sorted(n for n in names if not re.match(r'build|\.git/', n))

    def sources(self, folders=SOURCES):
        for name, text in self.texts.items():
            if name.split('/')[0] in folders and name.endswith(('.h', '.cc')):
                yield name, text

    def includes(self, name):
        """(own header, None) or (None, <system header>) for each #include."""
        return [(m[1], m[2]) for m in INCLUDE.finditer(self.texts[name])]


def room(name):
    """Whoever sees a header from another room sees its public face: the leaves, and the folders of runtime/."""
    parts = name.split('/')
    return '/'.join(parts[:2]) if parts[0] == 'runtime' and len(parts) > 2 else parts[0]


def include_edges(tree):
    for name, _ in tree.sources(PRODUCT):
        allowed = EDGES[name.split('/')[0]]
        for own, _ in tree.includes(name):
            if own and own.split('/')[0] not in allowed and own in tree.texts:
                yield f'{name} includes {own}: {name.split("/")[0]} may not know {own.split("/")[0]}'


def rooted_includes(tree):
    for name, _ in tree.sources():
        for own, system in tree.includes(name):
            if own and own not in tree.texts:
                yield f'{name} includes "{own}", which is no file from the root of the repository'
            if system and system[1:-1] in tree.texts:
                yield f'{name} includes {system} with angle brackets: own headers take quotes'


def public_headers(tree):
    """A header that another room sees, directly or through others, keeps the libraries behind it to itself."""
    seen = {}  # header -> who sees it from outside
    todo = [(own, name) for name, _ in tree.sources(PRODUCT) for own, _ in tree.includes(name)
            if own in tree.texts and room(own) != room(name)]
    while todo:
        header, viewer = todo.pop()
        if header in seen:
            continue
        seen[header] = viewer
        todo += [(own, header) for own, _ in tree.includes(header) if own in tree.texts]
    for header, viewer in sorted(seen.items()):
        for _, system in tree.includes(header):
            if system and PRIVATE.match(system):
                yield f'{header} includes {system}, and {viewer} sees it'


def pragma_once(tree):
    for name, text in tree.sources():
        if name.endswith('.h') and '#pragma once' not in text:
            yield f'{name}: no #pragma once'


def file_length(tree):
    for name, text in tree.texts.items():
        lines = text.count('\n')
        if lines > MAX_LINES and name.endswith(('.h', '.cc', '.py', '.sh', '.build')):
            yield f'{name}: {lines} lines, more than {MAX_LINES}'


def page_literals(tree):
    for name, text in tree.sources(('pager', 'runtime')):
        code = COMMENT_OR_STRING.sub(lambda m: '\n' * m[0].count('\n'), text)
        for number, line in enumerate(code.split('\n'), 1):
            found = PAGE_LITERAL.search(line)
            if found:
                yield f'{name}:{number}: {found[0]}: a page size comes from the kernel; another number takes another form'


def machine_paths(tree):
    for name, text in tree.texts.items():
        for number, line in enumerate(text.split('\n'), 1):
            found = MACHINE_PATH.search(line)
            if found and not name.startswith('tests/style/'):
                yield f'{name}:{number}: a path of one machine: {line.strip()[:80]}'


def top_level(tree):
    for first in sorted({name.split('/')[0] for name in tree.texts}):
        if first not in TOP_LEVEL and not first.startswith('.'):
            yield f'{first}: does not belong at the root; those that do: {", ".join(sorted(TOP_LEVEL))}'


RULES = (include_edges, rooted_includes, public_headers, pragma_once, file_length, page_literals, machine_paths, top_level)


def check(root):
    tree = Tree(root)
    if not any(True for _ in tree.sources(PRODUCT)):
        print(f'Bail out! no sources under {root}')
        return 1
    print(f'1..{len(RULES)}')
    for number, rule in enumerate(RULES, 1):
        wrong = list(rule(tree))
        print(f'{"not ok" if wrong else "ok"} {number} - {rule.__name__}')
        for line in wrong:
            print('# ' + line)
    return 0  # TAP says what failed; a status besides would count it as an error of this program


GOOD_TREE = {
    'kernels/dot.h': '#pragma once\n#include <cstddef>\n',
    'pager/pager.h': '#pragma once\n// about <liburing.h> and 4096\n#include "pager/plan.h"\n',
    'pager/plan.h': '#pragma once\nconst char* s = "4096"; int a = 40960, b = 14096; double c = 4096.5;\n',
    'pager/ring.h': '#pragma once\n#include <liburing.h>\n',
    'pager/ring.cc': '#include "pager/ring.h"\n#include <spdlog/spdlog.h>\n',
    'runtime/engine/engine.cc': '#include "pager/pager.h"\n#include "kernels/dot.h"\nauto p = "/proc/self/io";\n',
    'tests/pager/ring_test.cc': '#include "pager/ring.h"\nint page = 4096;\n',
}
PLANTED = (  # rule, file, text; each is added to the good tree alone
    (include_edges, 'kernels/bad.cc', '#include "pager/plan.h"\n'),
    (include_edges, 'pager/bad.cc', '#  include "runtime/engine/engine.h"\n'),
    (include_edges, 'schedtool/bad.cc', '#include "kernels/dot.h"\n'),
    (include_edges, 'runtime/cli/bad.cc', 'int x;\n#include "tests/material.h"\n'),
    (include_edges, 'runtime/cli/bad.cc', '#include "bench/bench.h"\n'),
    (rooted_includes, 'pager/bad.cc', '#include "plan.h"\n'),
    (rooted_includes, 'tests/bad.cc', '#include <pager/plan.h>\n'),
    (public_headers, 'pager/plan.h', '#pragma once\n#include <boost/lockfree/spsc_queue.hpp>\n'),
    (public_headers, 'kernels/dot.h', '#pragma once\n#include "kernels/more.h"\n'),
    (public_headers, 'runtime/cli/bad.cc', '#include "pager/ring.h"\n'),
    (pragma_once, 'tests/bad.h', 'int x;\n'),
    (file_length, 'bench/bad.cc', 'int x;\n' * 601),
    (page_literals, 'runtime/bad.cc', 'int x = f(4096u);\n'),
    (page_literals, 'pager/bad.cc', '/* */ int x = 0x1000;\n'),
    (page_literals, 'pager/bad.cc', "auto x = 4'096;\n"),
    (machine_paths, 'scripts/bad.sh', 'cd /home/me/weir\n'),
    (machine_paths, 'README.md', 'see `/work/x`\n'),
    (top_level, 'NOTES.md', 'a note\n'),
    (top_level, 'utils/more.py', 'x = 1\n'),
)
HELPERS = {'runtime/engine/engine.h': '#pragma once\n', 'tests/material.h': '#pragma once\n',
           'bench/bench.h': '#pragma once\n', 'kernels/more.h': '#pragma once\n#include <numa.h>\n'}


def findings(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        tree = Tree(root)
        return {rule for rule in RULES if list(rule(tree))}


def self_test():
    print(f'1..{len(PLANTED) + 1}')
    found = findings(GOOD_TREE | HELPERS)
    print(f'{"not ok" if found else "ok"} 1 - nothing in a good tree')
    for number, (rule, name, text) in enumerate(PLANTED, 2):
        found = findings(GOOD_TREE | HELPERS | {name: text})
        right = found == {rule}
        print(f'{"ok" if right else "not ok"} {number} - {rule.__name__} in {name}')
        if not right:
            print('# found by: ' + (', '.join(sorted(r.__name__ for r in found)) or 'no rule'))
    return 0


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(self_test() if sys.argv[1] == '--self-test' else check(sys.argv[1]))
