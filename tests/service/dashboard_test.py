#!/usr/bin/env python3
"""Looks at the dashboard of `weir serve` as a browser does, and at what it is told. Prints TAP, a line per check.

usage: dashboard_test.py WEIR [--sanitized]"""
import base64
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

KEY = {'Authorization': 'Bearer secret'}
MODULES = {'qk', 'vo', 'gate_up', 'down', 'head'}
COUNTS = ('tokens', 'prompt_tokens', 'cached_tokens', 'passes', 'read_bytes', 'read_s', 'stall_s', 'waits', 'faults',
          'entropies_end', 'waiting', 'finished', 'cancelled', 'failed', 'refused')


class Server:
    def __init__(self, weir, model, *options, environment=None):
        self.process = subprocess.Popen([weir, 'serve', model, '--port', '0', '-c', '512', '-t', '2', *options],
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        self.log, self.port = [], None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r'http://[^:]+:(\d+)', line)
            self.port = int(found[1]) if found else self.port
            if 'ready after' in line:
                break
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def ask(self, path, method='GET', headers=KEY, body=None):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        connection.request(method, path, body and json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read().decode()

    def told(self, path):
        return json.loads(self.ask(path)[2])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def digest(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def check_page(server, say):
    status, headers, page = server.ask('/', headers={})
    policy = dict(part.split(' ', 1) for part in headers.get('Content-Security-Policy', '').split('; '))
    say(status == 200 and headers['Content-Type'].startswith('text/html') and headers['Cache-Control'] == 'no-cache',
        "the page is anybody's", headers)
    wrong = [kind for kind in ('script', 'style') for text in re.findall(f'<{kind}[^>]*>(.*?)</{kind}>', page, re.S)
             if f"'sha256-{digest(text)}'" not in policy[f'{kind}-src'].split()]
    closed = policy['default-src'] == policy['frame-ancestors'] == "'none'" and policy['connect-src'] == "'self'"
    closed = closed and not re.search(r'unsafe|\*', str(policy))
    say(not wrong and closed, 'its policy allows its own script and style and nothing else', (wrong, policy))
    addresses = set(re.findall(r'(?:https?:)?//[\w.]+[^\s\'"`]*', re.sub(r'(?m)(^|\s)// .*$', '', page)))
    named = [n for n in re.findall(r'(?:src|href|action)\s*=\s*["\']?([^"\'\s>]+)', page) if not n.startswith('data:')]
    say(addresses <= {'http://www.w3.org/2000/svg'} and not named, 'it names nobody else', (addresses, named))
    makers = r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\sstyle="|\son\w+="'
    markup = re.findall(makers, page)
    say(page and not markup, 'and makes no markup of text', markup)
    status, head_headers, body = server.ask('/', 'HEAD', headers={})
    same_length = head_headers['Content-Length'] == headers['Content-Length']
    say(status == 200 and body == '' and same_length, 'HEAD', head_headers)
    say(server.ask('/', 'POST', headers={}, body={})[0] in (401, 404), 'nothing is posted to it')


def check_guard(server, say):
    data = [server.ask(path, headers=headers)[0] for path in ('/dashboard/data', '/dashboard/map')
            for headers in ({}, {'Authorization': 'Bearer x'}, KEY)]
    say(data == [401, 401, 200] * 2, 'what it shows takes a key', data)
    foreign = [server.ask(path, headers={**KEY, **wrong})[0] for path in ('/', '/dashboard/data')
               for wrong in ({'Host': 'evil.example'}, {'Origin': 'http://evil.example'})]
    say(foreign == [403] * 4, 'and a Host and an Origin of ours', foreign)
    headers = server.ask('/dashboard/data')[1]
    kept = headers['Cache-Control'], headers['Content-Type']
    say(kept == ('no-store', 'application/json'), 'nobody keeps it', headers)


def check_map(server, say, letters, layers=4, modules=frozenset(MODULES)):
    about, data = server.told('/dashboard/map'), server.told('/dashboard/data')
    cells = about['cells']
    places = {(c['layer'], c['module']) for c in cells}
    wanted = {(layer, module) for layer in range(layers) for module in modules - {'head'}} | {(layers, 'head')}
    say(places == wanted and len(cells) == len(wanted), 'each module of each layer has a cell', places ^ wanted)
    end = max(c['first'] + c['units'] for c in cells)
    filled = all(c['units'] > 0 and c['weights'] > 0 for c in cells)
    say(end == len(data['units']) and filled, 'cells are of all units', (end, len(data['units'])))
    say(set(data['units']) <= set(letters), f'which are {letters}', data['units'])
    return cells


def check_figures(server, say):
    answer = []
    asking = threading.Thread(target=lambda: answer.append(server.ask('/v1/completions', 'POST', body={
        'prompt': 'Once upon a time', 'max_tokens': 120, 'ignore_eos': True, 'temperature': 0.8})))
    before = last = server.told('/dashboard/data')
    unknown = before['perplexity_drift'] is None and before['warnings'] == [] and before['layer'] is None
    say(unknown and all(type(before[name]) in (int, float) for name in COUNTS), 'figures', before)
    asking.start()
    seen, sizes, back = set(), set(), []
    while asking.is_alive():
        now = server.told('/dashboard/data')
        back += [name for name in COUNTS if now[name] < last[name] and name != 'waiting']
        seen |= {now['layer']}
        sizes |= {sum(letter in 'Rsr' for letter in now['units'])}
        last = now
        time.sleep(0.01)
    asking.join()
    last = server.told('/dashboard/data')
    say(answer[0][0] == 200 and last['tokens'] - before['tokens'] == 120 and not back, 'counts go up with an answer',
        (back, last))
    say(len(seen - {None}) > 1 and seen - {None} <= set(range(5)), 'the walk is seen to go on', seen)
    nats = last['entropies']
    say(len(nats) == min(128, last['entropies_end']) > 100 and all(0 <= n < 8 for n in nats), 'entropies', nats[:5])
    say(last['read_bytes'] > before['read_bytes'] and last['read_s'] > before['read_s'], 'reads', last)
    extent = server.told('/dashboard/map')['unit_bytes']
    # What sanitizers take is in no budget.
    memory_fits = '--sanitized' in sys.argv or 0 < last['memory_bytes'] <= last['budget_bytes']
    say(max(sizes) * extent <= last['frame_bytes'] and memory_fits, 'what is here is within the budget',
        (sizes, extent, last['frame_bytes'], last['memory_bytes']))
    slots = last['slots']
    say([s['state'] for s in slots] == ['idle', 'idle'] and any(s['cached'] > 120 for s in slots), 'slots', slots)


def main():
    weir = sys.argv[1]
    results = []

    def say(right, what, detail=None):
        results.append(bool(right))
        print(f'{"ok" if right else "not ok"} {len(results)} - {what}', flush=True)
        if not right:
            print('# ' + str(detail)[:800].replace('\n', ' '), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        model, keys = os.path.join(folder, 'model.gguf'), os.path.join(folder, 'keys')
        subprocess.run([weir, 'synth', '--shape', '1.1b', '--layers', '4', '--vocab', '2000', '--type', 'q4_0',
                        '-o', model], check=True, capture_output=True)
        with open(keys, 'w') as out:
            out.write('secret\n')
        server = Server(weir, model, '--parallel', '2', '--weights-ram', '60%', '--api-key-file', keys)
        check_page(server, say)
        check_guard(server, say)
        cells = check_map(server, say, '.rsR')
        say(all(abs(cell['bits'] - 4.5) < 0.01 for cell in cells if cell['module'] != 'head'), 'bits', cells[:3])
        check_figures(server, say)
        say(server.stop() == 0, 'ends', server.log[-3:])
        for paging, letters in (('resident', 'R'), ('mmap', 'k'), ('advised', '.sR')):
            server = Server(weir, model, '--paging', paging, *(['--weights-ram', '60%'] if paging == 'advised' else []))
            check_map(server, say, letters)
            server.stop()
        for how in ({'environment': {'WEIR_DASHBOARD': 'false'}}, {'options': ['--no-dashboard']}):
            server = Server(weir, model, *how.get('options', []), environment=how.get('environment'))
            found = [server.ask(path)[0] for path in ('/', '/dashboard/data', '/health')]
            say(found == [404, 404, 200], f'none where nobody wants it: {how}', found)
            server.stop()
    print(f'1..{len(results)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
