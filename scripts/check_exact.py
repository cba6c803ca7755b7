#!/usr/bin/env python3
"""Shows on one native file that drafts change nothing but how fast an answer comes, and what they are worth.

Prompts are cut from texts of prose and from code. Each is answered at 8 bits and by --precision auto-exact, paged, with frames
for a share of the bytes that level 8 reads, and it is checked that
  - ids, text and the hash of all logits are the same;
  - the process stays at or below its budget.
One line per prompt; at the end, for prose and code: tokens a second of both, the share of 8-grams in the answers that had come
before (lookup is off unless asked for), how many drafted tokens were right by their place in the draft, bytes read a token, and
beside the speeds what a formula says: a pass or a draft takes the larger of its compute with all weights resident (measured
by one more run a kind, with drafts of the same mean length) and its bytes at the disk's speed (--device-gbps, or that of
--io-limit-mbps).
Exit status 1 where anything is not the same."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir', help='the program')
    parser.add_argument('model', help='a native file')
    parser.add_argument('--prose', nargs='+', default=[str(ROOT / 'README.md')], help='texts (default: README.md)')
    parser.add_argument('--code', nargs='+', default=[str(ROOT / 'runtime/engine/forward.cc')], help='default: runtime/engine/forward.cc')
    parser.add_argument('--prompts', type=int, default=20, help='half of them prose, half code')
    parser.add_argument('--tokens', type=int, default=64)
    parser.add_argument('--characters', type=int, default=400, help='of a prompt')
    parser.add_argument('--share', type=float, default=40, help='frames, per cent of the bytes that level 8 reads')
    parser.add_argument('--only', type=int, nargs=2, metavar=('FIRST', 'LAST'), help='of the prompts, from 0')
    parser.add_argument('--draft', action='append', help='as of weir run (default: 4)')
    parser.add_argument('--draft-max', type=int, default=8)
    parser.add_argument('--draft-adapt', default='on')
    parser.add_argument('--draft-head', default='16384')
    parser.add_argument('--temp', default='0')
    parser.add_argument('--threads', default='2')
    parser.add_argument('--io-limit-mbps', type=int)
    parser.add_argument('--device-gbps', type=float, help="the disk's own speed, for the formula")
    return parser.parse_args()


def cut(paths, n, characters):
    text = '\n'.join(pathlib.Path(p).read_text(encoding='utf-8') for p in paths)
    step = max(1, (len(text) - characters) // n)
    return [text[i * step:i * step + characters] for i in range(n)]


def run(options, prompt, extra, tokens=None):
    command = [options.weir, 'run', options.model, '-f', '-', '-n', str(tokens or options.tokens), '-c', '1024', '-t', options.threads, '--seed', '7',
               '--temp', options.temp, '--ignore-eos', '--json', '-q', *extra]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)}: {done.stderr.strip()}')
    return json.loads(done.stdout)


def repeated(ids, n=8):
    """Share of n-grams that had come before."""
    grams = [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0


class Kind:
    """What the answers of one kind came to."""

    def __init__(self):
        self.tokens = self.plain_s = self.exact_s = self.passes = self.rows = 0
        self.plain_bytes = self.verify_bytes = self.repeated = self.answers = 0
        self.sources = {}

    def add(self, plain, exact):
        n = len(plain['ids']) - 1
        self.tokens += n
        self.answers += 1
        self.plain_s += n / plain['timings']['decode_tokens_per_s']
        self.exact_s += n / exact['timings']['decode_tokens_per_s']
        self.plain_bytes += n * (plain['paging']['bytes_read_per_token'] or 0)
        self.passes += exact['drafts']['passes']
        self.rows += exact['drafts']['rows']
        self.verify_bytes += exact['drafts']['verify_bytes_read']
        self.repeated += repeated(plain['prompt_ids'][-64:] + plain['ids'])
        for source in exact['drafts']['sources']:
            sums = self.sources.setdefault(source['source'], {'drafted': 0, 'drafts': 0, 'accepted': 0, 'bytes_read': 0, 'places': []})
            for key in ('drafted', 'drafts', 'accepted', 'bytes_read'):
                sums[key] += source[key]
            for i, place in enumerate(source['places']):
                if i == len(sums['places']):
                    sums['places'].append([0, 0])
                sums['places'][i][0] += place['judged']
                sums['places'][i][1] += place['right']

    def formula(self, plain, exact, bytes_per_s):
        """Tokens a second of both arms, by compute with all weights resident and this kind's bytes."""
        plain_s = max(1 / plain['timings']['decode_tokens_per_s'], self.plain_bytes / self.tokens / bytes_per_s)
        drafts = exact['drafts']
        # Rows cost what they cost between a plain token and the resident run's passes.
        row_s = max(0, drafts['verify_s'] / drafts['passes'] - 1 / plain['timings']['decode_tokens_per_s']) / max(1, drafts['rows'] / drafts['passes'] - 1)
        pass_s = 1 / plain['timings']['decode_tokens_per_s'] + row_s * (self.rows / self.passes - 1)
        seconds = self.passes * max(pass_s, self.verify_bytes / self.passes / bytes_per_s)
        for source in drafts['sources']:
            mine = self.sources[source['source']]
            if mine['drafted'] and source['drafted']:
                seconds += mine['drafted'] * max(source['seconds'] / source['drafted'], mine['bytes_read'] / mine['drafted'] / bytes_per_s)
        return 1 / plain_s, self.tokens / seconds


def main():
    options = parse_arguments()
    paging = ['--paging', 'uffd']
    if options.io_limit_mbps:
        paging += ['--io-limit-mbps', str(options.io_limit_mbps)]
    drafts = [word for source in options.draft or ['4'] for word in ('--draft', source)]
    drafts += ['--draft-head', options.draft_head]
    lengths = ['--draft-max', str(options.draft_max), '--draft-adapt', options.draft_adapt]
    half = options.prompts // 2
    prompts = [('prose', p) for p in cut(options.prose, options.prompts - half, options.characters)]
    prompts += [('code', p) for p in cut(options.code, half, options.characters)]
    whole = run(options, 'a', ['--paging', 'resident', '--precision', '8'], 1)['paging']['weights_bytes']
    frames = ['--weights-ram', str(int(whole * options.share / 100))]
    kinds, wrong = {}, 0
    chosen = range(options.only[0], options.only[1] + 1) if options.only else range(len(prompts))
    for number in chosen:
        kind, prompt = prompts[number]
        plain = run(options, prompt, paging + frames + ['--precision', '8'])
        exact = run(options, prompt, paging + frames + ['--precision', 'auto-exact', *drafts, *lengths])
        same = all(plain[key] == exact[key] for key in ('ids', 'text', 'logits_hash'))
        within = all(r['memory']['peak_rss_bytes'] <= r['memory']['budget_bytes'] for r in (plain, exact))
        wrong += not (same and within)
        kinds.setdefault(kind, Kind()).add(plain, exact)
        speeds = [r['timings']['decode_tokens_per_s'] for r in (plain, exact)]
        print(f'{number:3d} {kind:5s} {speeds[0]:7.2f} {speeds[1]:7.2f} tokens/s, {speeds[1] / speeds[0]:5.2f} x, '
              f'{(len(exact["ids"]) - 1) / exact["drafts"]["passes"]:.2f} tokens a pass  {"same" if same else "DIFFERS"}'
              f'{"" if within else "  OVER ITS BUDGET"}', flush=True)
    for kind, k in kinds.items():
        print(f'{kind}: level 8 {k.tokens / k.plain_s:.2f} tokens/s, auto-exact {k.tokens / k.exact_s:.2f}: {k.plain_s / k.exact_s:.2f} x; '
              f'{k.tokens / k.passes:.2f} tokens a pass; {100 * k.repeated / k.answers:.0f} % of 8-grams had come before')
        print(f'  MB read a token: {k.plain_bytes / k.tokens / 1e6:.1f}; drafted '
              f'{(k.verify_bytes + sum(s["bytes_read"] for s in k.sources.values())) / k.tokens / 1e6:.1f}')
        for name, s in k.sources.items():
            places = ' '.join(f'{right / judged:.2f}' for judged, right in s['places'])
            print(f'  {name}: {s["accepted"]} of {s["drafted"]} right, {s["drafted"] / max(1, s["drafts"]):.1f} at a time, '
                  f'{s["bytes_read"] / max(1, s["drafted"]) / 1e6:.1f} MB each; right by place: {places}')
        gbps = options.io_limit_mbps / 1e3 if options.io_limit_mbps else options.device_gbps
        if gbps:
            prompt = next(p for name, p in prompts if name == kind)
            resident = ['--paging', 'resident', '--precision']
            length = max(1, round(sum(s['drafted'] for s in k.sources.values()) / k.passes))
            always = ['--draft-max', str(length), '--draft-adapt', 'off']
            figures = k.formula(run(options, prompt, resident + ['8']), run(options, prompt, resident + ['auto-exact', *drafts, *always]), gbps * 1e9)
            print(f'  formula: level 8 {figures[0]:.2f} tokens/s, auto-exact {figures[1]:.2f}: {figures[1] / figures[0]:.2f} x')
    print(f'{len(chosen)} prompts x {options.tokens} tokens, {os.path.basename(options.model)}, frames {frames[1]} bytes: '
          + ('all the same' if wrong == 0 else f'{wrong} NOT the same'))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
