#!/usr/bin/env python3
"""Holds weir's answers to llama.cpp's: perplexity of every quantised type, and what rounded activations cost.

usage: check_fidelity.py WEIR MATERIAL [--libraries FOLDER] [--smollm2 FILE] [--types Q8_0,Q4_K_M] [--kl] [--windows N]
                         [--keep FILE] [-t N]

MATERIAL is the folder of test models, with text/ and expected/. Two parts, each only where what it needs is given:
--libraries: where the prebuilt llama.cpp lies (bench/peers/llama_cpp_quantize.py says where from). The float model in MATERIAL
    is quantised by it to each type of expected/perplexity.json, which gives the very files that those figures are of (sizes
    are compared), and weir's perplexity may be 0.1 % above llama.cpp's. --kl adds the KL divergence from the float model.
--smollm2: the KL divergence over the whole vocabulary of the product's activations from float ones on the same weights, on
    both texts; llama.cpp's, in expected/kl.json, is the bound.
The whole of the first part takes some twenty minutes of a core. --keep writes each answer to a file, and does not ask again for
what is in it from the very same program: a run that was broken off goes on, and parts come together.
Exit status 1 where a bound is broken."""
import argparse
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

WITHIN = 1.001
SMOLLM2 = 'SmolLM2'


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir')
    parser.add_argument('material', type=pathlib.Path)
    parser.add_argument('--libraries', type=pathlib.Path)
    parser.add_argument('--smollm2')
    parser.add_argument('--types', help='of the first part (default: all that there are figures for)')
    parser.add_argument('--kl', action='store_true')
    parser.add_argument('--windows', help='fewer, for a quick look: what is then compared is not the same')
    parser.add_argument('--keep', type=pathlib.Path, help='answers so far: a line of JSON for each')
    parser.add_argument('-t', '--threads', default='2')
    return parser.parse_args()


def perplexity(options, model, text, *more):
    """What weir says, or None and why it refuses."""
    done = subprocess.run([options.weir, 'perplexity', str(model), '-f', str(text), '-t', options.threads, '--json', *more],
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        return None, done.stderr.strip().split('\n')[-1]
    return json.loads(done.stdout), ''


class Answers:
    """What a program has said before, by type, text and further arguments."""

    def __init__(self, options):
        self.options = options
        self.program = hashlib.sha256(pathlib.Path(options.weir).read_bytes()).hexdigest() if options.keep else ''
        self.kept = {}
        if options.keep and options.keep.exists():
            for line in options.keep.read_text().splitlines():
                entry = json.loads(line)
                if entry['program'] == self.program:
                    self.kept[tuple(entry['question'])] = entry['answer']

    def ask(self, kind, make_model, text, *more):
        question = (kind, text.name, *more)
        if question in self.kept:
            return self.kept[question], ''
        said, why = perplexity(self.options, make_model(), text, *more)
        if said is not None and self.options.keep:
            with self.options.keep.open('a') as file:
                print(json.dumps({'program': self.program, 'question': question, 'answer': said}), file=file)
        return said, why


def quantised(options, source, folder, row):
    """The model of a type, made where it is not there; the float model itself for F16."""
    kind = row['type']
    model = source if kind == 'F16' else folder / f'{kind}.gguf'
    if not model.exists():
        subprocess.run([sys.executable, pathlib.Path(__file__).parent.parent / 'bench/peers/llama_cpp_quantize.py',
                        options.libraries, source, model, kind], check=True)
    if os.path.getsize(model) != row['bytes']:
        sys.exit(f'{kind}: the file has {os.path.getsize(model)} bytes and the figures are of one of {row["bytes"]}')
    return model


def windows(options, usual):
    return ['--windows', options.windows] if options.windows else usual


def check_types(options):
    """Lines of a table; yields whether each bound holds."""
    source = options.material / 'weir-demo-8m-f16.gguf'
    expected = json.loads((options.material / 'expected/perplexity.json').read_text())['results']
    distances = {(r['type'], r['text']): r['kl_mean'] for r in json.loads((options.material / 'expected/kl.json').read_text())['results']}
    wanted = options.types.split(',') if options.types else None
    answers = Answers(options)
    print(f'{"type":8} {"text":20} {"llama.cpp":>10} {"weir":>10} {"ratio":>8}   KL from the float model: llama.cpp, weir')
    with tempfile.TemporaryDirectory() as folder:
        for row in expected:
            kind, text = row['type'], options.material / 'text' / row['text']
            if wanted and kind not in wanted:
                continue
            compare = ['--kl', str(source)] if options.kl and kind != 'F16' else []
            said, why = answers.ask(kind, functools.partial(quantised, options, source, pathlib.Path(folder), row), text, *compare,
                                    *windows(options, []))
            if said is None:
                print(f'{kind:8} {row["text"]:20} {row["ppl"]:10.4f} {"refused":>10}            {why}', flush=True)
                yield False
                continue
            ratio = said['perplexity'] / row['ppl']
            distance = f'{distances[kind, row["text"]]:.6f} {said["kl"]["mean"]:.6f}' if compare else ''
            print(f'{kind:8} {row["text"]:20} {row["ppl"]:10.4f} {said["perplexity"]:10.4f} {ratio:8.5f}   {distance}'
                  f'{"" if ratio <= WITHIN else "   TOO HIGH"}', flush=True)
            yield ratio <= WITHIN


def check_activations(options):
    print(f'{"activations":12} {"text":20} {"KL from float ones: llama.cpp":>30} {"weir":>10} {"95 %":>21} {"first choice":>13}')
    for row in json.loads((options.material / 'expected/kl.json').read_text())['results']:
        if not row['model'].startswith(SMOLLM2):
            continue
        said, why = perplexity(options, options.smollm2, options.material / 'text' / row['text'], '--kl', options.smollm2,
                               *windows(options, ['--windows', str(row['windows'])]))
        if said is None:
            sys.exit(why)
        kl = said['kl']
        low, high = kl['interval_95']
        print(f'{said["activations"]:12} {row["text"]:20} {row["kl_mean"]:30.6f} {kl["mean"]:10.6f} {low:10.6f}-{high:.6f} '
              f'{100 * kl["same_first"]:11.2f} %   perplexity {said["perplexity"]:.4f}, {kl["reference_perplexity"]:.4f} with float ones '
              f'(llama.cpp {row["ppl"]}, {row["ppl_ref"]}){"" if kl["mean"] < row["kl_mean"] else "   TOO FAR"}', flush=True)
        yield kl['mean'] < row['kl_mean']


def main():
    options = parse_arguments()
    held = []
    if options.libraries:
        held += check_types(options)
    if options.smollm2:
        held += check_activations(options)
    if not held:
        sys.exit('nothing to check: give --libraries, --smollm2 or both')
    return 0 if all(held) else 1


if __name__ == '__main__':
    sys.exit(main())
