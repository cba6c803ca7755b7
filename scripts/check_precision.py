#!/usr/bin/env python3
"""What levels, learned rounding and plans cost: KL divergence from the source, for a table of models, levels and texts.

usage: check_precision.py WEIR WEIR_SCHED MATERIAL FOLDER [--models demo,smollm2,gemma] [--texts NAME,...] [-t N]
                          [--levels 8,4,3,2] [--activations f32,int8] [--windows N] [--calibration-windows N]
                          [--rivals] [--json FILE]

MATERIAL is the folder of test models, with text/; SmolLM2 and Gemma are where scripts/fetch_model.sh puts them. Each
model is converted twice into FOLDER, by the nearest code and by rounding learned on calib.txt, and calibrated on
calib.txt; what is there already is used again, and so are the answers (FOLDER/answers.jsonl, by program, file and
question), so that a run that was broken off goes on. The reference is always the source with float activations. Texts
that are measured on were never calibrated on.

Compared are, window by window of the same text, learned rounding with the nearest code at each level, and the plan of
the sensitivity table with the uniform level of the same bytes; a difference counts where the 95 % interval of a paired
bootstrap over windows leaves one out. Bounds: level 8 (demo, int8: perplexity at most 1.001 times the source's; gemma,
f32: KL at most 0.001), learned rounding at most 0.8 times the nearest code (gemma at 3 and 4, smollm2 at 3), a plan
below the uniform level (demo and gemma at the bytes of 4 bits, smollm2 at those of 3). With --rivals each uniform level
and each plan of usual practice, too, meets the plan for the same bytes: none may be below it.
Exit status 1 where one of those that were measured is broken."""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys

CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME', pathlib.Path.home() / '.cache')) / 'weir'
SOURCES = {'demo': 'weir-demo-8m-f16.gguf', 'smollm2': 'SmolLM2-135M-Instruct.Q4_1.gguf',
           'gemma': 'gemma-3-270m.Q4_K_M.gguf'}
PLANS = {'demo': 4, 'gemma': 4, 'smollm2': 3}  # bits whose bytes a plan may take
LEARNED = {'gemma': (3, 4), 'smollm2': (3,)}   # levels at which learned rounding has a bound
RESAMPLES = 10000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('weir')
    parser.add_argument('sched')
    parser.add_argument('material', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--models', default='demo,smollm2,gemma')
    parser.add_argument('--texts', default='val_technical.txt,val_narrative.txt')
    parser.add_argument('--levels', default='8,4,3,2')
    parser.add_argument('--activations', default='f32,int8')
    parser.add_argument('--windows', type=int, default=12, help='of 512 tokens, from the start of each text')
    parser.add_argument('--calibration-windows', type=int, default=4)
    parser.add_argument('--rivals', action='store_true', help='uniform levels and usual practice beside plans of the same bytes')
    parser.add_argument('--json', type=pathlib.Path)
    parser.add_argument('-t', '--threads', default='2')
    return parser.parse_args()


def run(*command):
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f'{" ".join(words)}: {done.stderr.strip().splitlines()[-1:]}')
    return done.stdout


class Answers:
    """What a program has said before, by file and arguments."""

    def __init__(self, options):
        self.options = options
        self.path = options.folder / 'answers.jsonl'
        self.program = hashlib.sha256(pathlib.Path(options.weir).read_bytes()).hexdigest()
        self.kept = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            entry = json.loads(line)
            self.kept[tuple(entry['question'])] = entry['answer']

    def ask(self, model, reference, text, activations, *precision):
        options = self.options
        arguments = [str(word) for word in precision]
        # A plan's file may have another content the next time.
        shown = [pathlib.Path(word).read_text() if word.endswith('.json') else word for word in arguments]
        made = str(model.stat().st_mtime_ns)
        question = (self.program, model.name, made, text.name, activations, str(options.windows), *shown)
        if question not in self.kept:
            said = json.loads(run(options.weir, 'perplexity', model, '-f', text, '--kl', reference,
                                  '--windows', options.windows, '--activations', activations, '-t', options.threads,
                                  '--json', *arguments))
            answer = {'kl': [window['kl'] for window in said['per_window']], 'same_first': said['kl']['same_first'],
                      'ratio': said['perplexity'] / said['kl']['reference_perplexity'],
                      'bytes': said['paging']['weights_bytes']}
            with self.path.open('a') as file:
                print(json.dumps({'question': question, 'answer': answer}), file=file)
            self.kept[question] = answer
        return self.kept[question]


def mean(values):
    return sum(values) / len(values)


def interval(values, statistic):
    """95 % of a bootstrap over windows; values are what a window contributes, any shape."""
    chance = random.Random(1)
    drawn = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def paired(first, second):
    """Mean of the first over that of the second, its interval, and whether the first is lower."""
    pairs = list(zip(first, second))
    ratio = lambda chosen: sum(a for a, _ in chosen) / sum(b for _, b in chosen)
    low, high = interval(pairs, ratio)
    return {'ratio': ratio(pairs), 'interval_95': [low, high], 'lower': high < 1}


def prepare(options, name):
    """The source, and what is made of it: files by kind of rounding, and plans by the level whose bytes they take."""
    source = (options.material if name == 'demo' else CACHE) / SOURCES[name]
    calibration = options.material / 'text/calib.txt'
    files = {'nearest': options.folder / f'{name}-nearest.weir', 'learned': options.folder / f'{name}-learned.weir'}
    for kind, path in files.items():
        if not path.exists():
            learns = ['--calibration', calibration] if kind == 'learned' else []
            run(options.weir, 'convert', source, path, '-t', options.threads, *learns)
    table = pathlib.Path(f'{files["learned"]}.sensitivity.json')
    run(options.weir, 'calibrate', files['learned'], '-f', calibration, '-o', table,
        '--windows', options.calibration_windows, '-t', options.threads)
    plans = {}
    for level in (4, 3):
        plans[level] = options.folder / f'{name}-like{level}.json'
        plans[level].write_text(run(options.sched, 'plan', table, '--like', level))
    rivals = find_rivals(options, name, table) if options.rivals else {}
    return source, files, plans, rivals


def find_rivals(options, name, table):
    """By name: a plan that was not chosen by the table, and the one that the table has for its bytes."""
    rivals = {}
    ways = [('uniform', level) for level in (6, 4, 3, 2)] + [('prior', number) for number in range(1, 8)]
    for kind, number in ways:
        if kind == 'uniform':
            rival = ['--precision', number]
            plan = run(options.sched, 'plan', table, '--like', number)
        else:
            path = options.folder / f'{name}-prior{number}.json'
            path.write_text(run(options.sched, 'plan', table, '--prior', number))
            rival = ['--precision-plan', path]
            shown = run(options.sched, 'show', table, '--plan', path)
            bytes_of = int(re.search(r'the plan: (\d+) bytes', shown).group(1))
            plan = run(options.sched, 'plan', table, '--bytes', bytes_of)
        path = options.folder / f'{name}-as-{kind}{number}.json'
        path.write_text(plan)
        rivals[f'{kind} {number}'] = (rival, ['--precision-plan', path])
    return rivals


def measure(options, answers, name, verdicts, results):
    source, files, plans, rivals = prepare(options, name)
    levels = [int(level) for level in options.levels.split(',')]
    for text in (options.material / 'text' / text for text in options.texts.split(',')):
        for form in options.activations.split(','):
            arms = {}
            for kind, path in files.items():
                for level in levels:
                    arms[kind, level] = answers.ask(path, source, text, form, '--precision', level)
            for level, plan in plans.items():
                arms['plan', level] = answers.ask(files['learned'], source, text, form, '--precision-plan', plan)
            for (kind, level), said in arms.items():
                low, high = interval(said['kl'], mean)
                row = {'model': name, 'text': text.name, 'activations': form, 'rounding': kind, 'level': level,
                       'bytes': said['bytes'], 'kl': mean(said['kl']), 'interval_95': [low, high],
                       'perplexity_ratio': said['ratio'], 'same_first': said['same_first']}
                other = ('learned', level) if kind == 'plan' else ('nearest', level) if kind == 'learned' else None
                if other in arms:
                    row['against'] = {'rounding': other[0], **paired(said['kl'], arms[other]['kl'])}
                results.append(row)
                show(row)
                judge(name, row, verdicts)
            for rival, (its, ours) in rivals.items():
                mine, other = (answers.ask(files['learned'], source, text, form, *words) for words in (ours, its))
                pair = paired(mine['kl'], other['kl'])
                results.append({'model': name, 'text': text.name, 'activations': form, 'rival': rival, 'bytes': other['bytes'],
                                'plan_bytes': mine['bytes'], 'kl': mean(other['kl']), 'plan_kl': mean(mine['kl']), **pair})
                low, high = pair['interval_95']
                said = (f'{name}, {text.name}, {form}: the plan for the bytes of {rival} ({other["bytes"] / 1e6:.1f} MB), '
                        f'{pair["ratio"]:.3f} ({low:.3f} to {high:.3f}) of its KL, {mean(other["kl"]):.6f}')
                print(said, flush=True)
                verdicts.append((said, low <= 1))


def show(row):
    against = ''
    if 'against' in row:
        pair = row['against']
        low, high = pair['interval_95']
        against = f'{pair["ratio"]:6.2f} ({low:.2f} to {high:.2f}) of {pair["rounding"]}'
    low, high = row['interval_95']
    print(f'{row["model"]:8} {row["text"]:18} {row["activations"]:5} {row["rounding"]:8} {row["level"]:2} '
          f'{row["bytes"] / 1e6:8.1f} {row["kl"]:9.6f} {low:9.6f} to {high:9.6f} {row["perplexity_ratio"]:8.4f} '
          f'{100 * row["same_first"]:6.1f}  {against}', flush=True)


def judge(name, row, verdicts):
    """Adds what the row says of the bounds."""
    where, rounding, level = f'{name}, {row["text"]}, {row["activations"]}', row['rounding'], row['level']
    against = row.get('against', {}).get('ratio')
    if level == 8 and name == 'demo' and row['activations'] == 'int8':
        ratio = row['perplexity_ratio']
        said = f'{where}: level 8 ({rounding}), perplexity {ratio:.5f} of the source\'s, 1.001 allowed'
        verdicts.append((said, ratio <= 1.001))
    if level == 8 and name == 'gemma' and row['activations'] == 'f32':
        verdicts.append((f'{where}: level 8 ({rounding}), KL {row["kl"]:.6f}, 0.001 allowed', row['kl'] <= 0.001))
    if rounding == 'learned' and level in LEARNED.get(name, ()) and against is not None:
        said = f'{where}: learned rounding at level {level}, {against:.3f} of the nearest code\'s KL, 0.8 allowed'
        verdicts.append((said, against <= 0.8))
    if rounding == 'plan' and level == PLANS[name] and against is not None:
        said = f'{where}: a plan for the bytes of {level} bits, {against:.3f} of the uniform level\'s KL'
        verdicts.append((said, row['against']['lower']))


def main():
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    answers = Answers(options)
    verdicts, results = [], []
    print(f'{"model":8} {"text":18} {"act":5} {"rounding":8} {"":2} {"MB/token":>8} {"KL, nats":>9} '
          f'{"95 % over windows":>22} {"ppl x":>8} {"same %":>6}')
    for name in options.models.split(','):
        measure(options, answers, name, verdicts, results)
    print()
    for text, holds in verdicts:
        print(f'{"holds" if holds else "BROKEN":6} {text}')
    if options.json:
        bounds = [{'bound': text, 'holds': holds} for text, holds in verdicts]
        report = {'windows': options.windows, 'results': results, 'bounds': bounds}
        options.json.write_text(json.dumps(report, indent=1) + '\n')
    return 0 if all(holds for _, holds in verdicts) else 1


if __name__ == '__main__':
    sys.exit(main())
