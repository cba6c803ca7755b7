"""usage: show_runs.py QUESTION RESIDENT.json PAGED.json
Two runs of `weir run --json` side by side; exit status 1 where their text, tokens or logits differ."""
import json
import sys

MIB = 1 << 20


def row(label, resident, paged, note=''):
    print(f'  {label:<24}{resident:>14}{paged:>14}   {note}'.rstrip())


def mib(count):
    return f'{count / MIB:.1f} MiB'


def main():
    question = sys.argv[1]
    with open(sys.argv[2]) as first, open(sys.argv[3]) as second:
        resident, paged = json.load(first), json.load(second)
    paging = paged['paging']
    kept = paging['frame_bytes']

    print(f'\n  Q: {question}')
    print(f'  A: {resident["text"].strip()}\n')
    row('', 'resident', 'paged')
    row('weights', mib(paging['weights_bytes']), mib(paging['weights_bytes']), 'in the file')
    row('weights in memory', mib(paging['weights_bytes']), mib(kept),
        f'at most: {100 * kept / paging["weights_bytes"]:.0f} %')
    row('peak memory', *(mib(run['memory']['peak_rss_bytes']) for run in (resident, paged)), 'of the whole process')
    row('read per token', *(mib(run['paging']['bytes_read_per_token']) for run in (resident, paged)),
        'from the third token on')
    row('faults per token', *(f'{run["paging"]["faults_per_token"]:.1f}' for run in (resident, paged)))
    row('tokens/s', *(f'{run["timings"]["decode_tokens_per_s"]:.1f}' for run in (resident, paged)))
    row('bounded by', *(run['paging']['bounded_by'] for run in (resident, paged)))
    row('logits hash', *(run['logits_hash'][:12] for run in (resident, paged)), 'of every logit of every step')
    print()

    different = [what for what in ('text', 'prompt_ids', 'ids', 'logits_hash') if resident[what] != paged[what]]
    if different:
        print(f'DIFFERENT: {", ".join(different)}. The paged run says: {paged["text"].strip()}')
        return 1
    print('  The same text, token for token, from the same logits.\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
