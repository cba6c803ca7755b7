#!/usr/bin/env python3
"""What parallel streams of `weir serve` come to, beside one alone.

usage: measure_streams.py WEIR MODEL [--streams 4] [--tokens 24] [--runs 3] [--json] [-- OPTIONS OF WEIR SERVE...]

Asks for one stream and for several at once in turn, and prints tokens/s of all streams together (each from its first token to its
last), their medians and ratio, and bytes read per token that was streamed. Where reads bound, the ratio is what sharing a pass over
the weights is worth: measure_streams.py build/runtime/cli/weir model.gguf -- --weights-ram 25%"""
import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, weir, model, streams, options):
        command = [weir, 'serve', model, '--port', '0', '--parallel', str(streams), '-c', '512', *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port, said = None, []
        for line in self.process.stderr:
            said.append(line)
            found = re.search(r'http://[^:]+:(\d+)', line)
            self.port = self.port or (found and int(found[1]))
            if 'ready after' in line:
                break
        else:
            sys.exit('the server did not start:\n' + ''.join(said))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def bytes_read(self):
        with open(f'/proc/{self.process.pid}/io') as f:
            return int(re.search(r'^read_bytes: (\d+)', f.read(), re.M)[1])

    def stream(self, number, tokens, times):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=600)
        body = {'prompt': f'{number} a b c', 'max_tokens': tokens, 'ignore_eos': True, 'temperature': 0, 'stream': True}
        connection.request('POST', '/v1/completions', json.dumps(body))
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f'{response.status}: {response.read().decode()}')
        times.append([time.monotonic() for line in response if line.startswith(b'data: {')])

    def streams(self, n, tokens):
        """Tokens/s of n streams together, and bytes read per token of theirs."""
        times, before = [], self.bytes_read()
        threads = [threading.Thread(target=self.stream, args=(i, tokens, times)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(times) != n:
            sys.exit('a stream broke')
        return sum((len(t) - 1) / (t[-1] - t[0]) for t in times), (self.bytes_read() - before) / sum(map(len, times))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split('usage: ')[1].split('\n')[0], description=__doc__.split('\n')[0])
    parser.add_argument('weir')
    parser.add_argument('model')
    parser.add_argument('--streams', type=int, default=4)
    parser.add_argument('--tokens', type=int, default=24)
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--json', action='store_true')
    arguments = sys.argv[1:]
    split = arguments.index('--') if '--' in arguments else len(arguments)
    args, options = parser.parse_args(arguments[:split]), arguments[split + 1:]
    server = Server(args.weir, args.model, args.streams, options)
    server.streams(1, 3)  # fills what stays
    runs = []
    for _ in range(args.runs):
        for n in (1, args.streams):
            rate, read = server.streams(n, args.tokens)
            runs.append({'streams': n, 'tokens_per_s': rate, 'bytes_read_per_token': read})
            if not args.json:
                print(f'{n} at once: {rate:.2f} tokens/s, {read / 1e6:.0f} MB read per token', flush=True)
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(60)
    one, many = (statistics.median(r['tokens_per_s'] for r in runs if r['streams'] == n) for n in (1, args.streams))
    if args.json:
        print(json.dumps({'runs': runs, 'one': one, 'together': many, 'ratio': many / one}))
    else:
        print(f'{args.streams} streams: {many:.2f} tokens/s, one: {one:.2f} (medians): {many / one:.2f} x')
    return status


if __name__ == '__main__':
    sys.exit(main())
