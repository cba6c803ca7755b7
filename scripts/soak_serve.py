#!/usr/bin/env python3
"""Many clients of `weir serve` for a while, as they come: some ask, some go away, some send nonsense, some read slowly.

usage: soak_serve.py WEIR [MODEL] [--seconds 600] [--clients 16] [--seed 1] [-- OPTIONS OF WEIR SERVE...]

Without a model it makes a small one. Checks that every request gets an answer of its kind, that no slot is lost, that the
process stays within its budget at any time and, in runs of five minutes and more, that memory is flat after a warm-up, in which
caches, stacks and malloc's arenas are touched for the first time: VmRSS is looked at four times a second, and the mean of the last
quarter is at most 1 % above that of the third, which is 2 % over half of the time. Status 0 where all is right; the last line is a JSON object, with the mean of each
twelfth."""
import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

WORDS = 'the sea a river stone morning light over under bright cold house of and walks sings'.split()
SCHEMA = {'type': 'object', 'properties': {'name': {'type': 'string', 'maxLength': 12}, 'n': {'type': 'integer'}}, 'required': ['name', 'n']}


class Server:
    def __init__(self, weir, model, options):
        self.folder = tempfile.TemporaryDirectory()
        if model is None:
            model = os.path.join(self.folder.name, 'model.gguf')
            subprocess.run([weir, 'synth', '--shape', '1.1b', '--layers', '2', '--vocab', '2000', '--type', 'q4_0', '-o', model], check=True, capture_output=True)
        # Memory that is given back because others want it, and taken again, would be taken for growth.
        self.process = subprocess.Popen([weir, 'serve', model, '--port', '0', '--parallel', '4', '--queue', '24', '-c', '512', '--pressure', 'off', *options],
                                        stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            found = re.search(r'http://[^:]+:(\d+)', line)
            self.port = self.port or (found and int(found[1]))
            if 'ready after' in line:
                break
        else:
            sys.exit('the server did not start')
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def connect(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=300)

    def get(self, path):
        connection = self.connect()
        connection.request('GET', path)
        return connection.getresponse().read().decode()

    def status(self, key):
        with open(f'/proc/{self.process.pid}/status') as f:
            return int(re.search(rf'^{key}:\s+(\d+) kB', f.read(), re.M)[1]) << 10


def prompt(rng, words):
    return ' '.join(rng.choice(WORDS) for _ in range(words))


class Client(threading.Thread):
    """Sends one request after the other until `end`."""

    def __init__(self, server, seed, end):
        super().__init__()
        self.server, self.rng, self.end = server, random.Random(seed), end
        self.counts, self.wrong = {}, []

    def run(self):
        kinds = [self.whole, self.whole, self.stream, self.stream, self.leaves, self.leaves, self.form, self.embeds, self.nonsense,
                 self.oversize, self.slow, self.half]
        while time.monotonic() < self.end:
            kind = self.rng.choice(kinds)
            try:
                outcome = kind()
            except Exception as error:
                outcome = 'failed'
                self.wrong.append(f'{kind.__name__}: {error!r}')
            key = f'{kind.__name__} {outcome}'
            self.counts[key] = self.counts.get(key, 0) + 1
            if outcome == 'busy':
                time.sleep(self.rng.random())

    def send(self, body, path='/v1/completions'):
        connection = self.server.connect()
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request('POST', path, data, {'Content-Type': 'application/json'})
        return connection

    def body(self, **more):
        return {'prompt': prompt(self.rng, self.rng.randint(1, 120)), 'max_tokens': self.rng.randint(1, 48), 'seed': self.rng.randint(0, 99), **more}

    def expect(self, response, wanted, data):
        if response.status == 503:
            if int(response.headers['Retry-After']) < 1:
                self.wrong.append('503 without Retry-After')
            return 'busy'
        if response.status != wanted:
            self.wrong.append(f'status {response.status}, wanted {wanted}: {data[:200]}')
            return 'failed'
        return 'done'

    def answered(self, body, path='/v1/completions', wanted=200):
        response = self.send(body, path).getresponse()
        data = response.read()
        return self.expect(response, wanted, data), data

    def whole(self):
        outcome, data = self.answered(self.body())
        if outcome == 'done' and json.loads(data)['usage']['completion_tokens'] < 1:
            self.wrong.append(f'no tokens: {data[:200]}')
        return outcome

    def stream(self):
        outcome, data = self.answered(self.body(stream=True))
        if outcome == 'done' and not data.endswith(b'data: [DONE]\n\n'):
            self.wrong.append(f'a stream without an end: {data[-200:]}')
        return outcome

    def form(self):
        outcome, data = self.answered(self.body(max_tokens=80, response_format={'type': 'json_schema', 'json_schema': {'schema': SCHEMA}}))
        if outcome == 'done':
            choice = json.loads(data)['choices'][0]
            if choice['finish_reason'] == 'stop':
                made = json.loads(choice['text'])
                if set(made) != {'name', 'n'} or len(made['name']) > 12:
                    self.wrong.append(f'not of the form: {data[:200]}')
        return outcome

    def embeds(self):
        outcome, data = self.answered({'input': [prompt(self.rng, self.rng.randint(1, 60)) for _ in range(self.rng.randint(1, 5))]}, '/v1/embeddings')
        if outcome == 'done' and abs(sum(x * x for x in json.loads(data)['data'][0]['embedding']) - 1) > 1e-3:
            self.wrong.append('an embedding whose length is not 1')
        return outcome

    def leaves(self):
        connection = self.send(self.body(max_tokens=300, ignore_eos=True, stream=self.rng.random() < 0.5))
        time.sleep(self.rng.random())
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        return 'done'

    def nonsense(self):
        bodies = [b'{"prompt": ', b'\xff\xfe', b'[' * 5000, b'{}', b'{"prompt": 1}', b'{"prompt": "x", "temperature": "hot"}', os.urandom(300),
                  b'{"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}']
        return self.answered(self.rng.choice(bodies), wanted=400)[0]

    def oversize(self):
        try:
            return self.answered(b'"' + b'x' * (2 << 20) + b'"', wanted=413)[0]
        except (BrokenPipeError, ConnectionResetError):
            return 'done'  # it did not want to hear the rest

    def slow(self):
        response = self.send(self.body(stream=True)).getresponse()
        data = b''
        while chunk := response.read(64):
            data += chunk
            time.sleep(0.02)
        outcome = self.expect(response, 200, data)
        if outcome == 'done' and not data.endswith(b'data: [DONE]\n\n'):
            self.wrong.append(f'a slow stream without an end: {data[-200:]}')
        return outcome

    def half(self):
        """A request that never comes whole."""
        with socket.create_connection(('127.0.0.1', self.server.port), timeout=60) as s:
            s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"pro')
            time.sleep(self.rng.random())
        return 'done'


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('weir')
    parser.add_argument('model', nargs='?')
    parser.add_argument('--seconds', type=float, default=600)
    parser.add_argument('--clients', type=int, default=16)
    parser.add_argument('--seed', type=int, default=1)
    known = sys.argv[1:]
    split = known.index('--') if '--' in known else len(known)
    args = parser.parse_args(known[:split])
    server = Server(args.weir, args.model, known[split + 1:])
    budget = float(re.search(r'^weir_memory_budget_bytes (\S+)', server.get('/metrics'), re.M)[1])
    begin = time.monotonic()
    clients = [Client(server, args.seed * 1000 + i, begin + args.seconds) for i in range(args.clients)]
    for client in clients:
        client.start()
    samples, wrong = [], []
    while time.monotonic() < begin + args.seconds:
        if server.process.poll() is not None:
            wrong.append(f'the server ended with status {server.process.returncode}')
            break
        samples.append((time.monotonic() - begin, server.status('VmRSS')))
        time.sleep(0.25)
    for client in clients:
        client.join()
        wrong += client.wrong
    counts = {}
    for client in clients:
        for key, n in client.counts.items():
            counts[key] = counts.get(key, 0) + n
    status = peak = None
    if server.process.poll() is None:
        end = time.monotonic() + 20
        while any(s['is_processing'] for s in json.loads(server.get('/slots'))) and time.monotonic() < end:
            time.sleep(0.05)
        if any(s['is_processing'] for s in json.loads(server.get('/slots'))):
            wrong.append('a slot is lost')
        peak = server.status('VmHWM')
        if peak > budget:
            wrong.append(f'the peak of {peak} is above the budget of {budget:.0f}')
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(60)
        if status != 0:
            wrong.append(f'the server ended with status {status}')

    def mean(low, high):
        within = [r for t, r in samples if low <= t / args.seconds < high]
        return sum(within) / max(1, len(within))
    growth = mean(0.75, 1) / max(1, mean(0.5, 0.75)) - 1
    if growth > 0.01 and args.seconds >= 300:
        wrong.append(f'memory grew by {growth:.1%}')
    for line in wrong[:10]:
        print(line, file=sys.stderr)
    print(json.dumps({'requests': sum(counts.values()), 'seconds': args.seconds, 'clients': args.clients, 'wrong': len(wrong),
                      'rss_growth': round(growth, 4), 'rss_mib': [round(mean(i / 12, (i + 1) / 12) / 2 ** 20, 1) for i in range(12)], 'peak_bytes': peak, 'budget_bytes': budget, 'outcomes': dict(sorted(counts.items()))}))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
