#!/usr/bin/env python3
"""Two servers behind a real nginx with the configuration that is installed; one is killed under load. Prints TAP.

usage: balancer_test.py WEIR NGINX_CONF"""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

CLIENTS = 6
REQUESTS = 60
TOKENS = 24


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


class Box:
    """A server, ready."""

    def __init__(self, weir, model):
        self.process = subprocess.Popen([weir, 'serve', model, '--port', '0', '-c', '128', '-t', '1', '--parallel', '4', '--queue', '32'],
                                        stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            found = re.search(r'http://127\.0\.0\.1:(\d+)', line)
            self.port = int(found[1]) if found else self.port
            if 'ready after' in line:
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def answered(self):
        text = ask(self.port, 'GET', '/metrics')[1]
        return int(float(re.search(r'result="finished"} (\S+)', text)[1]))


def ask(port, method, path, body=None):
    """(status, text, whole): what came until the end, and whether the end came."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    text, status = b'', 0
    try:
        connection.request(method, path, body and json.dumps(body))
        response = connection.getresponse()
        status = response.status
        while piece := response.read1(1 << 16):
            text += piece
        return status, text.decode(), True
    except (http.client.HTTPException, OSError):
        return status, text.decode(), False
    finally:
        connection.close()


def main():
    weir, config = sys.argv[1:3]
    if not shutil.which('nginx'):
        print('1..0 # SKIP nginx is not here')
        return 0
    print('1..5')

    def say(number, right, what, detail=None):
        print(f'{"ok" if right else "not ok"} {number} - {what}', flush=True)
        if not right:
            print('# ' + repr(detail)[:800], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, 'model.gguf')
        subprocess.run([weir, 'synth', '--shape', '1.1b', '--layers', '2', '--vocab', '2000', '--type', 'q4_0', '-o', model], check=True, capture_output=True)
        boxes = [Box(weir, model) for _ in range(2)]
        with open(config) as text:
            ours = text.read()
        port = free_port()
        for number, box in enumerate(boxes, 1):
            ours = ours.replace(f'192.0.2.{number}:8080', f'127.0.0.1:{box.port}')
        ours = ours.replace('listen 8080;', f'listen 127.0.0.1:{port};')
        places = ''.join(f'{name}_temp_path {folder}/{name};' for name in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
        with open(os.path.join(folder, 'nginx.conf'), 'w') as out:
            out.write(f'daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1; {"user root;" if os.geteuid() == 0 else ""}\n'
                      f'events {{}}\nhttp {{ access_log off; {places}\n{ours}}}\n')
        nginx = subprocess.Popen(['nginx', '-p', folder, '-c', os.path.join(folder, 'nginx.conf')], stderr=subprocess.PIPE)
        try:
            end = time.monotonic() + 20
            while time.monotonic() < end and ask(port, 'GET', '/health')[0] != 200 and nginx.poll() is None:
                time.sleep(0.05)
            say(1, ask(port, 'GET', '/health')[0] == 200, 'the configuration works', nginx.poll())
            killed = threading.Event()
            done = []

            def one(number):
                if number == REQUESTS * 2 // 3 and not killed.is_set():
                    killed.set()
                    boxes[0].process.send_signal(signal.SIGKILL)
                stream = number % 3 == 0
                answer = ask(port, 'POST', '/v1/completions', {'prompt': f'a{number}', 'max_tokens': TOKENS, 'ignore_eos': True, 'stream': stream})
                done.append((stream, *answer))
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                before = pool.map(one, range(REQUESTS // 3))
                list(before)
                both = [box.answered() for box in boxes]
                list(pool.map(one, range(REQUESTS // 3, REQUESTS)))
            say(2, all(n > 0 for n in both), 'both boxes answer', both)
            lost = [d for d in done if d[1] != 200]
            say(3, len(done) == REQUESTS and not lost, 'one box is killed, and no request is lost that had no status yet', (len(done), lost))
            broken = [d for d in done if not d[3]]
            whole = [d for d in done if d[3]]
            say(4, all('[DONE]' in d[2] if d[0] else json.loads(d[2])['usage']['completion_tokens'] == TOKENS for d in whole), 'all that ended are whole',
                whole[:1])
            say(5, len(broken) <= CLIENTS and all(d[0] for d in broken), f'{len(broken)} of {CLIENTS} under way were cut off, all of them streams', broken)
        finally:
            nginx.terminate()
            nginx.wait()
            for box in boxes:
                box.process.kill()
                box.process.wait()
    return 0


if __name__ == '__main__':
    sys.exit(main())
