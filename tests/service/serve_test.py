#!/usr/bin/env python3
"""Talks to `weir serve` over sockets as a client would; prints TAP, one line per check.

usage: serve_test.py WEIR MODEL     status 77 where the model is not here"""
import base64
import concurrent.futures
import gzip
import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

QUESTION = {'messages': [{'role': 'user', 'content': 'What is the capital of France?'}], 'temperature': 0, 'max_tokens': 12}
LONG = {'prompt': 'Once upon a time', 'max_tokens': 1500, 'ignore_eos': True, 'stream': True}
TOOL = {'type': 'function', 'function': {'name': 'add', 'parameters': {
    'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}, 'required': ['a', 'b'], 'additionalProperties': False}}}
CITY = {'type': 'object', 'properties': {'city': {'type': 'string', 'maxLength': 20}, 'size': {'enum': ['small', 'large']},
                                         'tags': {'type': 'array', 'items': {'type': 'string', 'maxLength': 8}, 'minItems': 1, 'maxItems': 3}},
        'required': ['city', 'size', 'tags']}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__('localhost')
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Server:
    """The program, started and ready."""

    def __init__(self, weir, model, *options, unix=None):
        self.unix = unix
        where = ['--unix-socket', unix] if unix else ['--port', '0']
        self.process = subprocess.Popen([weir, 'serve', model, *where, '-c', '2048', *options], stderr=subprocess.PIPE, text=True)
        self.log = []
        self.port = None
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                found = re.search(r'http://[^:]+:(\d+)', line)
                if found:
                    self.port = int(found[1])
                if 'ready after' in line:
                    ready.set()
            ready.set()
        threading.Thread(target=read, daemon=True).start()
        ready.wait(120)

    def connection(self, timeout=120):
        return UnixConnection(self.unix) if self.unix else http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)

    def send(self, method, path, body=None, headers=None):
        connection = self.connection()
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        connection.request(method, path, data, {'Content-Type': 'application/json', **(headers or {})})
        return connection.getresponse()

    def ask(self, path, body=None, headers=None):
        """(status, what the answer's JSON says)"""
        response = self.send('GET' if body is None else 'POST', path, body, headers)
        return response.status, json.loads(response.read())

    def stream(self, path, body):
        response = self.send('POST', path, {**body, 'stream': True})
        events = [e[6:] for e in response.read().decode().split('\n\n') if e]
        return [json.loads(e) for e in events[:-1]], events[-1]

    def slots(self):
        return [slot['is_processing'] for slot in self.ask('/slots')[1]]

    def status(self, key):
        """KiB, of /proc/PID/status"""
        with open(f'/proc/{self.process.pid}/status') as status:
            return int(re.search(rf'^{key}:\s+(\d+) kB', status.read(), re.M)[1])

    def wait_until(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return 'killed'


def answers(server, say):
    status, answer = server.ask('/v1/chat/completions', QUESTION)
    text = answer['choices'][0]['message']['content']
    say(status == 200 and text, 'a question is answered', answer)
    say(answer['usage']['completion_tokens'] > 0 and answer['object'] == 'chat.completion', 'with its usage')
    events, last = server.stream('/v1/chat/completions', {**QUESTION, 'stream_options': {'include_usage': True}})
    streamed = ''.join(c['delta'].get('content', '') for e in events for c in e['choices'])
    say(streamed == text and last == '[DONE]', 'the stream has the same text and ends', (streamed, last))
    say(events[-1]['choices'] == [] and events[-1]['usage']['completion_tokens'] == answer['usage']['completion_tokens'], 'and its usage')
    say(events[-1]['usage']['prompt_tokens_details']['cached_tokens'] > 0, 'the second time the prompt is cached', events[-1])
    plain = {'prompt': 'The sea is', 'max_tokens': 20, 'temperature': 0.8, 'seed': 7}
    first, second = (server.ask('/v1/completions', plain)[1]['choices'][0]['text'] for _ in range(2))
    say(first == second and first, 'a seed gives the same text again', (first, second))
    stop = first[4:7]
    status, cut = server.ask('/v1/completions', {**plain, 'stop': [stop]})
    say(cut['choices'][0]['text'] == first[:first.find(stop)] and cut['choices'][0]['finish_reason'] == 'stop', 'a stop string ends it', (first, stop, cut))
    status, probable = server.ask('/v1/chat/completions', {**QUESTION, 'logprobs': True, 'top_logprobs': 3})
    content = probable['choices'][0]['logprobs']['content']
    say(all(len(t['top_logprobs']) == 3 and t['logprob'] == t['top_logprobs'][0]['logprob'] <= 0 for t in content), 'logprobs', content[:1])
    say(bytes(b for t in content for b in t['bytes']).decode() == text, "whose tokens' bytes are the text")


def batches(server, say):
    bodies = [{'prompt': f'Tell me about the number {i}.', 'max_tokens': 24, 'temperature': 0.9, 'seed': i} for i in range(8)]
    alone = [server.ask('/v1/completions', body)[1]['choices'][0]['text'] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = [a[1]['choices'][0]['text'] for a in pool.map(lambda body: server.ask('/v1/completions', body), bodies)]
    say(alone == together, 'answers are the same alone and together', [(a, b) for a, b in zip(alone, together) if a != b])


def forms(server, say):
    def is_city(text):
        made = json.loads(text)
        return (list(made) == ['city', 'size', 'tags'] and len(made['city']) <= 20 and made['size'] in ('small', 'large')
                and 1 <= len(made['tags']) <= 3 and all(len(tag) <= 8 for tag in made['tags']))
    form = {'type': 'json_schema', 'json_schema': {'name': 'city', 'schema': CITY}}
    bodies = [{**QUESTION, 'max_tokens': 150, 'temperature': t, 'seed': i, 'response_format': form} for i, t in enumerate((0, 0.8, 1.5, 0.8))]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        made = [a[1]['choices'][0] for a in pool.map(lambda body: server.ask('/v1/chat/completions', body), bodies)]
    say(all(is_city(c['message']['content']) and c['finish_reason'] == 'stop' for c in made), 'answers keep to their schema, several at once', made)
    free = server.ask('/v1/completions', {'prompt': 'As JSON: ', 'max_tokens': 300, 'temperature': 0, 'response_format': {'type': 'json_object'}})[1]['choices'][0]
    say(free['finish_reason'] == 'length' or isinstance(json.loads(free['text']), dict), 'or are objects', free)
    status, answer = server.ask('/v1/chat/completions', {**QUESTION, 'response_format': {'type': 'json_schema', 'json_schema': {
        'schema': {'properties': {'x': {'multipleOf': 2}}}}}})
    say(status == 400 and answer['error']['param'].endswith('properties.x.multipleOf'), 'what cannot be had is named', answer)


def embeddings(server, say):
    texts = ['The cat sleeps on the sofa.', 'A kitten naps on the couch.', 'Interest rates rose by two percent.']
    status, answer = server.ask('/v1/embeddings', {'input': texts})
    vectors = [d['embedding'] for d in answer['data']]
    product = lambda a, b: sum(x * y for x, y in zip(a, b))
    say(status == 200 and [d['index'] for d in answer['data']] == [0, 1, 2] and all(abs(product(v, v) - 1) < 1e-4 for v in vectors), 'embeddings', answer)
    say(product(vectors[0], vectors[1]) > product(vectors[0], vectors[2]), 'what is alike lies close', [product(vectors[0], v) for v in vectors])
    tokens = server.ask('/tokenize', {'content': texts[0], 'add_special': True})[1]['tokens']
    coded = server.ask('/v1/embeddings', {'input': [tokens], 'encoding_format': 'base64'})[1]
    vector = struct.unpack(f'<{len(vectors[0])}f', base64.b64decode(coded['data'][0]['embedding']))
    say(max(abs(a - b) for a, b in zip(vector, vectors[0])) < 1e-6 and coded['usage']['total_tokens'] == len(tokens), 'the same of tokens, in base64', coded['usage'])
    say([server.ask('/v1/embeddings', {'input': i})[0] for i in ('', [], [10 ** 6], 'word ' * 5000)] == [400] * 4, 'or an error')


def tools(server, say):
    ask = {'messages': [{'role': 'user', 'content': 'Add 2 and 3.'}], 'tools': [TOOL], 'temperature': 0, 'max_tokens': 100}
    for what, choice in (('required', 'required'), ('named', {'type': 'function', 'function': {'name': 'add'}})):
        answer = server.ask('/v1/chat/completions', {**ask, 'tool_choice': choice, 'parallel_tool_calls': False})[1]['choices'][0]
        call = answer['message']['tool_calls'][0]
        arguments = json.loads(call['function']['arguments'])
        say(answer['finish_reason'] == 'tool_calls' and answer['message']['content'] is None and call['function']['name'] == 'add'
            and call['id'].startswith('call_') and set(arguments) == {'a', 'b'}, f'a call that is {what}', answer)
        events, last = server.stream('/v1/chat/completions', {**ask, 'tool_choice': choice, 'parallel_tool_calls': False})
        deltas = [d for e in events for c in e['choices'] for d in c['delta'].get('tool_calls', [])]
        say(deltas[0]['id'] and deltas[0]['function']['name'] == 'add' and events[-1]['choices'][0]['finish_reason'] == 'tool_calls'
            and json.loads(''.join(d['function'].get('arguments', '') for d in deltas)) == arguments, 'and the same as a stream', events[-3:])
    history = [*ask['messages'], {'role': 'assistant', 'content': None, 'tool_calls': [{**call}]},
               {'role': 'tool', 'tool_call_id': call['id'], 'content': '5'}]
    prompt = server.ask('/apply-template', {'messages': history, 'tools': [TOOL]})[1]['prompt']
    say('<tools>' in prompt and '<tool_call>\n{"name": "add"' in prompt and '<tool_response>\n5\n</tool_response>' in prompt, 'calls and their results go back', prompt)
    for choice in ('auto', 'none'):
        status, answer = server.ask('/v1/chat/completions', {**ask, 'messages': history, 'tool_choice': choice})
        say(status == 200 and answer['choices'][0]['finish_reason'] in ('stop', 'length', 'tool_calls'), f'tools that are {choice}', answer)


def endpoints(server, say):
    say(server.ask('/health') == (200, {'status': 'ok'}), 'health')
    name = server.ask('/v1/models')[1]['data'][0]['id']
    say(server.ask('/v1/models/' + name)[1]['id'] == name and server.ask('/v1/models/none')[0] == 404, 'models')
    say(server.ask('/props')[1]['total_slots'] == 2, 'props')
    tokens = server.ask('/tokenize', {'content': 'Hello, world'})[1]['tokens']
    say(server.ask('/detokenize', {'tokens': tokens})[1]['content'] == 'Hello, world', 'tokenize and detokenize')
    say('<|im_start|>user\nHi<|im_end|>' in server.ask('/apply-template', {'messages': [{'role': 'user', 'content': 'Hi'}]})[1]['prompt'], 'apply-template')
    text = server.send('GET', '/metrics').read().decode()
    names = re.findall(r'^# TYPE (\S+) counter', text, re.M)
    say(names and all(n.startswith('weir_') and n.endswith('_total') for n in names), 'metrics', text[:300])
    first = re.search(r'weir_time_to_first_token_seconds_count (\d+)', text)
    say(first and int(first[1]) > 0 and text.count('\nweir_warning{') == 4, 'metrics: first tokens and warnings', text[-2000:])


def errors(server, say):
    bad = [(b'{"messages": [', 400), (b'[]', 400), (b'', 400), (b'\xff\xfe', 400), (b'[' * 100000, 400), ({}, 400), ({'messages': []}, 400),
           ({'messages': [{'role': 'wizard', 'content': 'x'}]}, 400), ({**QUESTION, 'temperature': 'hot'}, 400), ({**QUESTION, 'n': 3}, 400),
           ({**QUESTION, 'stop': ['']}, 400), ({**QUESTION, 'response_format': {'type': 'xml'}}, 400), ({**QUESTION, 'tools': [TOOL]}, 400),
           ({'messages': [{'role': 'user', 'content': 'word ' * 5000}]}, 400),
           ({'messages': [{'role': 'user', 'content': [{'type': 'image_url'}]}]}, 400), (b'"' + b'x' * (2 << 20) + b'"', 413)]
    wrong = []
    for body, wanted in bad:
        status, answer = server.ask('/v1/chat/completions', body)
        if status != wanted or set(answer['error']) != {'message', 'type', 'param', 'code'}:
            wrong.append((str(body)[:60], status, answer))
    say(not wrong, 'bad requests get errors', wrong)
    status, answer = server.ask('/nothing')
    say(status == 404 and 'error' in answer, 'so do unknown addresses', answer)
    say(server.ask('/health', headers={'Host': 'evil.example'})[0] == 403, 'a foreign Host is refused')
    say(server.ask('/v1/models', headers={'Origin': 'http://evil.example'})[0] == 403, 'a foreign Origin is refused')


def bodies(server, say):
    """A body is held to its limit however it comes, and none by another limit."""
    def chunked(size):
        connection = server.connection()
        connection.request('POST', '/tokenize', iter([b'{"content": "'] + [b'x' * 65536] * (size // 65536) + [b'"}']))
        return connection.getresponse().status
    say((chunked(65536), chunked(3 << 20)) == (200, 413), 'in chunks')
    packed = lambda size: server.ask('/tokenize', gzip.compress(b'{"content": "' + b'x' * size + b'"}'), {'Content-Encoding': 'gzip'})[0]
    peak = server.status('VmHWM')
    say((packed(1000), packed(3 << 20), packed(200 << 20)) == (200, 413, 413), 'packed')
    say(server.status('VmHWM') - peak < 128 << 10, 'and takes no memory for it', (peak, server.status('VmHWM')))
    form = server.ask('/tokenize', b'{"content": "' + b'x' * 20000 + b'"}', {'Content-Type': 'application/x-www-form-urlencoded'})
    say(form[0] == 200, 'what calls itself a form', form)
    parts = server.ask('/tokenize', b'--a--', {'Content-Type': 'multipart/form-data; boundary=a'})
    say(parts[0] == 415, 'in parts', parts)
    for length, wanted in (('-5', 400), ('ten', 400), ('99999999999999999999', 400), ('9999999999999', 413)):
        connection = server.connection(20)
        connection.putrequest('POST', '/tokenize')
        connection.putheader('Content-Length', length)
        connection.endheaders()
        say(connection.getresponse().status == wanted, f'Content-Length: {length}')
    say(server.send('PUT', '/tokenize', b'{}').status == 405 and server.send('POST', '/nothing', b'{}').status == 404, 'other methods and places')


def crowd(server, say):
    """Many who do not go on keep nobody out."""
    held = []
    for _ in range(60):
        held.append(server.connection())
        held[-1].connect()
        held[-1].sock.sendall(b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n')
    begin = time.monotonic()
    status = server.ask('/health')[0]
    say(status == 200 and time.monotonic() - begin < 25, 'those who send nothing keep nobody out', (status, time.monotonic() - begin))
    for connection in held:
        connection.close()


def disconnects(server, say):
    for what, body in (('stream', LONG), ('whole answer', {**LONG, 'stream': False})):
        connection = server.connection()
        connection.request('POST', '/v1/completions', json.dumps(body))
        say(server.wait_until(lambda: any(server.slots())), f'{what}: a slot is taken')
        gone = connection.sock.dup()  # http.client closes its own when a response takes it over
        if body['stream']:
            connection.getresponse().read(100)
        else:
            say(not select.select([gone], [], [], 0.2)[0], f'{what}: nothing is sent before it is there')
        begin = time.monotonic()
        gone.shutdown(socket.SHUT_RDWR)
        connection.close()
        say(server.wait_until(lambda: not any(server.slots()), 20), f'{what}: a client that goes frees its slot', time.monotonic() - begin)


def overload(server, say):
    held = []
    for i in range(3):  # two slots and a queue of one
        connection = server.connection()
        connection.request('POST', '/v1/completions', json.dumps(LONG))
        held.append(connection)
        server.wait_until(lambda: sum(server.slots()) == min(i + 1, 2))
    waiting = lambda: 'weir_requests_waiting 1\n' in server.send('GET', '/metrics').read().decode()
    say(server.wait_until(waiting), 'one waits')
    response = server.send('POST', '/v1/completions', LONG)
    body = json.loads(response.read())
    say(response.status == 503 and int(response.headers['Retry-After']) >= 1 and body['error']['code'] == 'busy', 'the next is sent away', body)
    say(server.ask('/health')[0] == 200, 'health is answered while all slots are busy')
    for connection in held:
        connection.close()
    say(server.wait_until(lambda: not any(server.slots()) and not waiting()), 'and all are free again')


def rests(server, say):
    """Nothing wakes while nobody asks; a machine that is short of memory may wake who watches it."""
    def wakes():
        made = {}
        for task in os.listdir(f'/proc/{server.process.pid}/task'):
            with open(f'/proc/{server.process.pid}/task/{task}/status') as status:
                text = status.read()
            name = re.search(r'^Name:\s+(\S+)', text)[1]
            if name.startswith('weir-'):
                made[name] = made.get(name, 0) + int(re.search(r'^voluntary_ctxt_switches:\s+(\d+)', text, re.M)[1])
        return made
    seen = []

    def quiet():
        before = wakes()
        time.sleep(1.5)
        after = wakes()
        seen.append({name: n - before[name] for name, n in after.items()})
        return 'weir-watch' in before and all(n <= 2 for n in seen[-1].values())
    server.wait_until(lambda: not any(server.slots()))
    say(server.wait_until(quiet, 20), 'while nobody asks no thread wakes', seen)


def drains(server, say):
    result = []

    def ask():
        result.append(server.ask('/v1/completions', {'prompt': 'Once', 'max_tokens': 60, 'ignore_eos': True}))
    asker = threading.Thread(target=ask)
    asker.start()
    server.wait_until(lambda: any(server.slots()))
    status = server.stop()
    asker.join(30)
    say(status == 0 and result and result[0][1]['usage']['completion_tokens'] == 60, 'SIGTERM lets answers be finished', (status, result))


def interrupts(server, say):
    result = []
    asker = threading.Thread(target=lambda: result.append(server.send('POST', '/v1/completions', {**LONG, 'stream': False})))
    asker.start()
    server.wait_until(lambda: any(server.slots()))
    status = server.stop()
    asker.join(30)
    say(status == 0 and result and result[0].status == 503 and result[0].headers['Retry-After'], 'an answer that is not done in time is refused', (status, result))


def main():
    weir, model = sys.argv[1:3]
    if not os.path.exists(model):
        print('1..0 # SKIP the model is not here')
        return 0
    results = []

    def say(right, what, detail=None):
        results.append(bool(right))
        print(f'{"ok" if right else "not ok"} {len(results)} - {what}', flush=True)
        if not right:
            print('# ' + str(detail)[:600], flush=True)

    def run(check, server):
        try:
            check(server, say)
        except Exception as error:  # the test goes on: what follows may say why
            say(False, check.__name__, repr(error) + ' ' + ''.join(server.log[-3:]))

    server = Server(weir, model, '--parallel', '2', '--queue', '1')
    for check in (answers, endpoints, forms, embeddings, errors, bodies, crowd, disconnects, overload, rests):
        run(check, server)
    run(drains, server)
    wide = Server(weir, model, '--parallel', '3')
    run(batches, wide)
    say(wide.stop() == 0, 'ends', wide.log[-3:])
    tooled = Server(weir, model, '--chat-template', 'qwen', '--drain', '0')
    run(tools, tooled)
    run(interrupts, tooled)
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, 'keys')
        with open(keys, 'w') as out:
            out.write('# of the test\nsecret-1\nsecret-2\n')
        guarded = Server(weir, model, '--api-key-file', keys, unix=os.path.join(folder, 'socket'))
        say([guarded.ask('/health')[0], guarded.ask('/v1/models')[0],
             guarded.ask('/v1/models', headers={'Authorization': 'Bearer secret-2'})[0],
             guarded.ask('/v1/models', headers={'Authorization': 'Bearer secret'})[0]] == [200, 401, 200, 401], 'keys, at a Unix socket')
        say(guarded.stop() == 0 and not os.path.exists(guarded.unix), 'whose path is gone in the end', guarded.log[-3:])
    print(f'1..{len(results)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
