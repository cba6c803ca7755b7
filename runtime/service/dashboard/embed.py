#!/usr/bin/env python3
"""Makes one document of a page and the style and scripts that it names, and a C++ source of that (see page.h).

usage: embed.py INDEX.HTML OUT.CC"""
import base64
import hashlib
import pathlib
import re
import sys

NAMED = re.compile(r'<link rel="stylesheet" href="([\w.]+)">|<script src="([\w.]+)"></script>')


def embed(index):
    hashes = {'style': [], 'script': []}

    def inline(found):
        kind, name = ('style', found[1]) if found[1] else ('script', found[2])
        text = '\n' + (index.parent / name).read_text()
        if f'</{kind}' in text.lower():
            sys.exit(f'{name}: a word that would end it')
        hashes[kind].append("'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'")
        return f'<{kind}>{text}</{kind}>'
    page = NAMED.sub(inline, index.read_text())
    policy = '; '.join((
        "default-src 'none'", 'script-src ' + ' '.join(hashes['script']), 'style-src ' + ' '.join(hashes['style']),
        "connect-src 'self'", 'img-src data:', "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'"))
    return page, policy


def numbers(text):
    values = [str(byte if byte < 128 else byte - 256) for byte in text.encode()]
    return ',\n'.join(','.join(values[i:i + 32]) for i in range(0, len(values), 32))


def main():
    page, policy = embed(pathlib.Path(sys.argv[1]))
    pathlib.Path(sys.argv[2]).write_text(f'''#include "runtime/service/dashboard/page.h"

namespace weir {{
namespace {{
const char kPageBytes[] = {{
{numbers(page)}}};
}}  // namespace

const std::string_view kDashboardPage(kPageBytes, sizeof kPageBytes);
const std::string_view kDashboardPolicy = "{policy}";

}}  // namespace weir
''')


if __name__ == '__main__':
    main()
