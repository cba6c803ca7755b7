#!/usr/bin/env python3
"""Runs `weir serve` as a service manager would: notify socket, watchdog, a socket handed over, signals; and with options from
a file and the environment. Prints TAP, one line per check.

usage: managed_test.py WEIR EXAMPLE_CONFIG DASHBOARD"""
import ctypes
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


class Manager:
    """The far end of the notify socket."""

    def __init__(self, folder):
        self.path = os.path.join(folder, 'notify')
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.told = []
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            self.told += self.socket.recv(4096).decode().split('\n')

    def hears(self, what, after=0, seconds=60):
        """The place behind the first line from `after` on that matches; None where none comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for place, line in enumerate(self.told[after:], after):
                if re.fullmatch(what, line):
                    return place + 1
            time.sleep(0.01)
        return None


def ask(connection, path, body=None, headers=None):
    connection.request('GET' if body is None else 'POST', path, body and json.dumps(body), headers or {})
    response = connection.getresponse()
    return response.status, response.read().decode()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__('localhost', timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def tcp(port):
    return http.client.HTTPConnection('127.0.0.1', port, timeout=60)


class Checks:
    def __init__(self, weir, folder):
        self.weir, self.folder, self.count, self.running = weir, folder, 0, []
        self.model = os.path.join(folder, 'model.gguf')
        subprocess.run([weir, 'synth', '--shape', '1.1b', '--layers', '2', '--vocab', '2000', '--type', 'q4_0', '-o', self.model], check=True, capture_output=True)

    def say(self, right, what, detail=None):
        self.count += 1
        print(f'{"ok" if right else "not ok"} {self.count} - {what}', flush=True)
        if not right:
            print('# ' + repr(detail)[:800], flush=True)

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, 'w') as out:
                out.write(text)
        return path

    def serve(self, *options, env=None, handed=None):
        """The program, started; `handed` becomes descriptor 3."""
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith('WEIR_')}, **(env or {})}
        command = [self.weir, 'serve', *options]
        log = open(self.path('log'), 'wb+')
        if handed is not None:
            # LISTEN_PID is the program's own, which a shell knows that then becomes it.
            command = ['sh', '-c', 'export LISTEN_PID=$$; exec "$@" 3<&%d' % handed.fileno(), 'sh', *command]
            environment['LISTEN_FDS'] = '1'
        process = subprocess.Popen(command, stderr=log, env=environment, pass_fds=[handed.fileno()] if handed else [])
        process.log = log
        self.running.append(process)
        return process

    def log(self, process):
        process.log.seek(0)
        return process.log.read().decode()

    def end(self, process, signal_number=signal.SIGTERM):
        process.send_signal(signal_number)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            return 'killed'


def notified(t, manager):
    keys, unix = t.path('keys', 'first\n'), t.path('socket')
    env = {'NOTIFY_SOCKET': manager.path, 'WATCHDOG_USEC': '200000'}
    options = (t.model, '--unix-socket', unix, '--api-key-file', keys, '-c', '64')
    process = t.serve(*options, env=env)
    loading, ready = manager.hears('STATUS=loading .*'), manager.hears('READY=1')
    t.say(loading and ready and loading < ready, 'it says that it loads, and then that it is ready', manager.told)
    t.say(manager.hears(r'STATUS=0 of 4 slots busy, 0 requests wait; 0\.0 tokens/s; \d+ of \d+ MiB', ready), 'and how it is', manager.told)
    fed = manager.hears('WATCHDOG=1')
    t.say(fed and manager.hears('WATCHDOG=1', fed), 'the watchdog is fed, again and again', manager.told)

    def allowed(key):
        return ask(UnixConnection(unix), '/v1/models', headers={'Authorization': 'Bearer ' + key})[0] == 200
    t.say(allowed('first') and not allowed('second'), 'the first key is good')
    t.path('keys', 'second\n')
    before = len(manager.told)
    process.send_signal(signal.SIGHUP)
    reloading = manager.hears('RELOADING=1', before)
    t.say(reloading and manager.hears(r'MONOTONIC_USEC=\d+', reloading) == reloading + 1 and manager.hears('READY=1', reloading),
          'SIGHUP reloads', manager.told[before:])
    t.say(allowed('second') and not allowed('first'), 'and the second key is good instead')
    os.unlink(keys)
    before = len(manager.told)
    process.send_signal(signal.SIGHUP)
    manager.hears('READY=1', before)
    t.say(allowed('second') and 'stay as they were' in t.log(process), 'a reload that fails changes nothing', t.log(process))
    t.path('keys', 'second\n')
    t.say(t.end(process, signal.SIGKILL) == -signal.SIGKILL and os.path.exists(unix), 'SIGKILL leaves the socket behind')
    before = len(manager.told)
    process = t.serve(*options, env=env)
    t.say(manager.hears('READY=1', before) and allowed('second'), 'and the next start takes its place', t.log(process))
    before = len(manager.told)
    t.say(t.end(process) == 0 and manager.hears('STOPPING=1', before), 'SIGTERM says that it stops', manager.told[before:])


def stuck(t, manager):
    """The pager's thread is stopped while nobody asks for anything: the probe finds out."""
    before = len(manager.told)
    process = t.serve(t.model, '--unix-socket', t.path('socket'), '-c', '64', env={'NOTIFY_SOCKET': manager.path, 'WATCHDOG_USEC': '100000'})
    manager.hears('READY=1', before)
    threads = {}
    for task in os.listdir(f'/proc/{process.pid}/task'):
        with open(f'/proc/{process.pid}/task/{task}/comm') as comm:
            threads[comm.read().strip()] = int(task)
    seize, interrupt, any_child = 0x4206, 0x4207, 0x40000000
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    pager = threads.get('weir-pager', 0)
    if pager == 0 or ptrace(seize, pager, None, None) != 0:
        t.say(True, 'a stopped pager # SKIP no userfaultfd or no ptrace here')
        t.end(process)
        return
    ptrace(interrupt, pager, None, None)
    os.waitpid(pager, any_child)  # it has stopped
    os.waitpid(pager, any_child)  # and gone, with the process
    status = process.wait(60)
    t.say(status == 1 and 'the pager thread does not answer' in t.log(process), 'a stopped pager ends the process', (status, t.log(process)))


def handed_over(t, manager):
    listener = socket.socket()
    listener.bind(('127.0.0.1', 0))
    listener.listen(16)
    port = listener.getsockname()[1]
    body = {'prompt': [5, 6, 7], 'max_tokens': 4, 'ignore_eos': True}
    for turn in ('the first', 'the second'):
        early = tcp(port)
        early.request('POST', '/v1/completions', json.dumps({**body, 'prompt': 'a'}))  # before anybody serves
        before = len(manager.told)
        process = t.serve(t.model, '-c', '64', env={'NOTIFY_SOCKET': manager.path}, handed=listener)
        status = early.getresponse().status
        t.say(status == 200 and manager.hears('READY=1', before), f'a request that came before {turn} start is answered', (status, t.log(process)))
        t.say(t.end(process) == 0, f'{turn} ends', t.log(process))
    with socket.create_connection(('127.0.0.1', port), 5):
        t.say(True, 'the socket still listens')
    wrong = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    process = t.serve(t.model, '-c', '64', handed=wrong)
    t.say(process.wait(60) == 1 and 'ListenStream' in t.log(process), 'another kind of socket is an error', t.log(process))


def rests(t, manager):
    before = len(manager.told)
    process = t.serve(t.model, '-c', '64', '--unix-socket', t.path('socket'), '--idle-release', '1', '--paging', 'uffd',
                      env={'NOTIFY_SOCKET': manager.path})
    if not manager.hears('READY=1', before) or 'paging=uffd' not in t.log(process):
        t.say('userfaultfd' in t.log(process), 'rest # SKIP no userfaultfd here', t.log(process))
        t.end(process)
        return

    def frames():
        text = ask(UnixConnection(t.path('socket')), '/metrics')[1]
        return float(re.search(r'^weir_frame_bytes (\S+)', text, re.M)[1])

    def answers():
        return ask(UnixConnection(t.path('socket')), '/v1/completions', {'prompt': 'a', 'max_tokens': 8, 'ignore_eos': True, 'temperature': 0})

    def becomes(condition):
        end = time.monotonic() + 30
        while time.monotonic() < end and not condition():
            time.sleep(0.05)
        return condition()
    awake, first = frames(), answers()
    t.say(becomes(lambda: frames() < awake), 'after a second without a request frames are given back', (awake, frames()))
    second = answers()
    text = [json.loads(a[1])['choices'][0]['text'] for a in (first, second)]
    t.say(text[0] == text[1] and becomes(lambda: answers()[0] == 200 and frames() > 0.9 * awake), 'and taken again for the next', (text, awake, frames()))
    t.say(t.end(process) == 0, 'it ends', t.log(process))


def severity(t, _):
    # stderr is the log file here: to the program that is the journal.
    process = t.serve('/nowhere/model.gguf', '--port', '0')
    process.wait(60)
    plain = t.log(process)
    shell = 'export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec "$@"'
    marked = subprocess.run(['sh', '-c', shell, 'sh', t.weir, 'serve', '/nowhere/model.gguf', '--port', '0'], stderr=open(t.path('log'), 'wb'), check=False)
    with open(t.path('log')) as text:
        lines = text.read().split('\n')
    t.say(marked.returncode == 1 and '<' not in plain.split(':')[0] and any(l.startswith('<3>weir: ') for l in lines),
          'errors are marked where the journal reads them', (plain, lines))


def metrics(t, dashboard):
    process = t.serve(t.model, '--unix-socket', t.path('socket'), '-c', '64', '--parallel', '1')
    end = time.monotonic() + 60
    while time.monotonic() < end and 'ready after' not in t.log(process):
        time.sleep(0.02)
    text = ask(UnixConnection(t.path('socket')), '/metrics')[1]
    t.end(process)
    with open(dashboard) as file:
        panels = json.load(file)['panels']
    used = {name for panel in panels for target in panel['targets'] for name in re.findall(r'weir_\w+', target['expr'])}
    had = set(re.findall(r'^# TYPE (\w+)', text, re.M))
    t.say(len(used) > 10 and used <= had, "the dashboard's metrics are there", used - had)
    if not shutil.which('promtool'):
        t.say(True, 'promtool check metrics # SKIP it is not here')
        return
    done = subprocess.run(['promtool', 'check', 'metrics'], input=text, capture_output=True, text=True, check=False)
    t.say(done.returncode == 0 and not done.stdout + done.stderr, 'promtool check metrics has nothing to say', done.stdout + done.stderr)


def configuration(t, example):
    def show(*options, env=None, config=None):
        path = [] if config is None else ['--config', t.path('weir.toml', config)]
        environment = {**{k: v for k, v in os.environ.items() if not k.startswith('WEIR_')}, **(env or {})}
        done = subprocess.run([t.weir, 'serve', '--print-config', *path, *options], capture_output=True, text=True, env=environment, check=False)
        values = dict(re.findall(r'^([\w-]+) = (.*?)  +#', done.stdout, re.M))
        return done.returncode, values, done.stderr, done.stdout
    file = 'port = 81\nqueue = 3 # three\nram = "50%"\nallow-host = ["a", "b"]\npressure = false\ntemp = 0.5\n'
    status, values, error, text = show('--port', '83', config=file, env={'WEIR_PORT': '82', 'WEIR_QUEUE': '4'})
    t.say(status == 0 and (values.get('port'), values.get('queue'), values.get('ram')) == ('83', '4', '"50%"'),
          'the command line overrides the environment, which overrides the file', (values, error))
    places = [re.search(rf'^{key} = .*?# (.*)$', text, re.M)[1] for key in ('port', 'queue', 'ram', 'host')]
    t.say(places == ['command line', 'WEIR_QUEUE', t.path('weir.toml') + ':3', 'default'], 'and each value says where it is from', places)
    t.say(values.get('allow-host') == '["a", "b"]' and values.get('pressure') == 'false' and values.get('temp') == '0.5', 'lists, switches and fractions', values)
    status, again, error, _ = show(config=text)
    t.say(status == 0 and {**again, 'port': 0} == {**values, 'port': 0} and again['port'] == '83', 'what is shown is a configuration', (again, error))
    t.say(show(env={'WEIR_ALLOW_HOST': 'x,y'})[1].get('allow-host') == '["x", "y"]', 'a list in the environment')
    bad = [('\n\nprot = 1\n', 3, 'prot'), ('port = "80"\n', 1, 'whole number'), ('port = 1.5\n', 1, 'whole number'), ('port = 99999\n', 1, '99999'),
           ('host = 5\n', 1, 'quotes'), ('x = 1\nx = 2\n', 2, 'x'), ('port = \n', 1, ''), ('[memory]\nram = "2G"\n', 1, 'memory'),
           ('ram = "2X"\n', 1, '--ram'), ('ram = true\n', 1, 'size'), ('allow-host = "a"\n', 1, 'list'), ('allow-host = [1]\n', 1, 'list'),
           ('paging = "none"\n', 1, 'none of'), ('pressure = "maybe"\n', 1, 'maybe'), ('greedy = 1\n', 1, 'true or false'), ('temp = nan\n', 1, 'temp'),
           ('config = "x"\n', 1, 'config'), ('json = true\n', 1, 'json'), ('a = ' + '[' * 5000, 1, ''), ('port = 1\n\x00', 2, ''), ('x' * 2_000_000, 0, 'too large')]
    wrong = []
    for config, line, word in bad:
        status, _, error, _ = show(config=config)
        place = t.path('weir.toml') + (f':{line}:' if line else ':')
        if status != 2 or place not in error or word not in error or error.count('\n') != 1:
            wrong.append((config[:30], status, error[:300]))
    t.say(not wrong, 'what is wrong is said with its line', wrong)
    status, _, error, _ = show('--config', t.path('no.toml'))
    t.say(status == 2 and 'no.toml' in error, 'a file that is not there', error)
    status, _, error, _ = show(env={'WEIR_PORT': 'many'})
    t.say(status == 2 and 'WEIR_PORT' in error, 'a wrong variable', error)

    with open(example) as text:
        lines = text.read()
    uncommented = re.sub(r'^# ?(?=[a-z-]+ = )', '', lines, flags=re.M)
    status, values, error, text = show(config=uncommented)
    everything = set(re.findall(r'^(?:# )?([\w-]+)(?: =|  )', text, re.M))
    shown = set(re.findall(r'^([a-z-]+) = ', uncommented, re.M))
    t.say(status == 0 and shown == everything, 'the example has every option, and nothing else', (error, everything ^ shown))
    status, values, error, _ = show(config=lines)
    t.say(status == 0 and set(re.findall(r'^([a-z-]+) = ', lines, re.M)) == {'model'}, 'and sets the model alone', (error, values))


def main():
    weir, example, dashboard = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        t = Checks(os.path.abspath(weir), folder)
        manager = Manager(folder)
        try:
            for check in (notified, stuck, handed_over, rests, severity):
                try:
                    check(t, manager)
                except Exception as error:  # the test goes on: what follows may say why
                    t.say(False, check.__name__, repr(error))
            metrics(t, dashboard)
            configuration(t, example)
        finally:
            for process in t.running:
                if process.poll() is None:
                    process.kill()
                process.wait()
    print(f'1..{t.count}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
