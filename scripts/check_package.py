#!/usr/bin/env python3
"""Installs Weir's Debian package in a Debian that boots, and does to the service what owners do: starts it, reloads it, kills
it, boots again. Prints TAP, and what was measured. Needs root, debootstrap and some minutes; no part of CI.

usage: check_package.py PACKAGE.deb MODEL.gguf [--root FOLDER]

The system is a container made of namespaces, with systemd as its first process, over a root that debootstrap fills once
(default: ~/.cache/weir/debian-root); what is written goes to a layer that is thrown away. It shares the network and the kernel
of this machine, so what systemd's sandboxes leave of userfaultfd and io_uring is tried for real."""
import argparse
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PORT = 18080
QUESTION = {'prompt': 'The capital of France is', 'max_tokens': 1, 'temperature': 0}

# Run in namespaces of its own. Its root becomes the layered one, with what an init expects to find.
BOOT = r'''
set -eu
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
cd "$ROOT"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=weir PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --show-status=false
'''


class Machine:
    """The container: boots, runs commands, goes off."""

    def __init__(self, lower, folder):
        self.lower, self.process, self.pid = lower, None, None
        self.paths = {name: os.path.join(folder, name) for name in ('upper', 'work', 'root')}
        for path in self.paths.values():
            os.mkdir(path)

    def boot(self):
        environment = {**os.environ, 'LOWER': self.lower, **{k.upper(): v for k, v in self.paths.items()}}
        self.process = subprocess.Popen(['unshare', '--fork', '--pid', '--mount', '--uts', '--ipc', '--cgroup', 'sh', '-c', BOOT],
                                        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            children = open(f'/proc/{self.process.pid}/task/{self.process.pid}/children').read().split()
            if children and open(f'/proc/{children[0]}/comm').read() == 'systemd\n':
                self.pid = children[0]
                if self.run('test', '-S', '/run/dbus/system_bus_socket').returncode == 0:
                    return
            time.sleep(0.02)
        raise SystemExit('the system does not boot: ' + (self.process.stderr.read().decode() if self.process.poll() is not None else 'no bus'))

    def run(self, *command, **options):
        return subprocess.run(['nsenter', '--target', self.pid, '--mount', '--uts', '--ipc', '--pid', '--cgroup', '--root', '--wd',
                               'env', '-i', 'PATH=/usr/sbin:/usr/bin:/sbin:/bin', 'DEBIAN_FRONTEND=noninteractive', *command],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)

    def must(self, *command):
        done = self.run(*command)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(command)}: status {done.returncode}: {done.stdout[-600:]}')
        return done.stdout

    def off(self):
        if self.process is None:
            return
        if self.process.poll() is None and self.pid:
            os.kill(int(self.pid), signal.SIGRTMIN + 4)  # systemd: power off
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.kill(int(self.pid), signal.SIGKILL)
            self.process.wait()
        self.process = None

    def write(self, path, text):
        done = subprocess.run(['nsenter', '--target', self.pid, '--mount', '--root', 'tee', path], input=text, stdout=subprocess.DEVNULL, text=True, check=True)
        return done

    def show(self, unit, *properties):
        values = dict(line.split('=', 1) for line in self.must('systemctl', 'show', unit, *('-p' + p for p in properties)).splitlines())
        return [values[p] for p in properties]


def ask(path, body=None, headers=None, timeout=60):
    """(status, text), or (0, why not)."""
    try:
        connection = http.client.HTTPConnection('127.0.0.1', PORT, timeout=timeout)
        connection.request('GET' if body is None else 'POST', path, body and json.dumps(body), headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as error:
        return 0, str(error)


def first_token(seconds=60):
    """Seconds until the service has answered with a token."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        if ask('/v1/completions', QUESTION)[0] == 200:
            return time.monotonic() - begin
        time.sleep(0.01)
    return None


def prepare_root(path):
    if os.path.exists(os.path.join(path, 'usr/lib/systemd/systemd')):
        return
    print(f'# debootstrap into {path}', flush=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    subprocess.run(['debootstrap', '--variant=minbase', '--include=systemd,systemd-sysv,dbus', 'bookworm', path], check=True, stdout=subprocess.DEVNULL)


def check(machine, package, model, say, note):
    config = f'model = "model.gguf"\nport = {PORT}\nram = "512M"\nctx-size = 512\n'
    begin = time.monotonic()
    machine.boot()
    note(f'boot until the bus is there: {time.monotonic() - begin:.2f} s')
    upper = machine.paths['upper']
    shutil.copy(package, os.path.join(upper, 'weir.deb'))
    machine.write('/etc/resolv.conf', open('/etc/resolv.conf').read())
    machine.must('apt-get', '-qq', 'update')
    done = machine.run('apt-get', '-qq', '-y', '--no-install-recommends', 'install', '/weir.deb')
    say(done.returncode == 0, 'the package installs, with what it depends on', done.stdout)
    say(machine.show('weir.service', 'LoadState', 'ActiveState', 'UnitFileState') == ['loaded', 'inactive', 'disabled'], 'and starts nothing by itself')
    done = machine.run('systemctl', 'start', 'weir.service')
    say(done.returncode != 0 and 'model.gguf' in machine.run('journalctl', '-u', 'weir', '-p', 'err', '-o', 'cat').stdout,
        'without a model it says so, as an error', machine.run('journalctl', '-u', 'weir').stdout)
    machine.run('systemctl', 'stop', 'weir.service')
    machine.must('systemctl', 'reset-failed')

    machine.must('mkdir', '-p', '/opt/models')
    shutil.copy(model, os.path.join(upper, 'opt/models/model.gguf'))
    config = config.replace('"model.gguf"', '"/opt/models/model.gguf"')
    machine.write('/etc/weir/weir.toml', config)
    begin = time.monotonic()
    machine.must('systemctl', 'start', 'weir.service')
    note(f'systemctl start until READY=1: {time.monotonic() - begin:.2f} s')
    log = machine.run('journalctl', '-u', 'weir', '-o', 'cat').stdout
    say(re.search('paging=uffd uffd=user-mode-only install=move reader=io_uring', log), 'the sandbox leaves userfaultfd and io_uring', log)
    say('pressure=on psi=' in log and 'psi=none' not in log, 'and the pressure of memory', log)
    note(f'first token: {first_token():.2f} s after that')
    say(re.search(r'\d of 4 slots busy', machine.show('weir.service', 'StatusText')[0]), 'systemctl status says how it is', machine.show('weir.service', 'StatusText'))
    user = machine.must('stat', '-c', '%u', f'/proc/{machine.show("weir.service", "MainPID")[0]}')
    say(61184 <= int(user) <= 65519, 'its user is one of the moment', user)
    say(machine.run('getent', '-s', 'files', 'passwd', 'weir').returncode != 0, 'which is in no file')

    cpu = [int(machine.show('weir.service', 'CPUUsageNSec')[0])]
    time.sleep(20)
    cpu.append(int(machine.show('weir.service', 'CPUUsageNSec')[0]))
    note(f'idle: {(cpu[1] - cpu[0]) / 20e7:.3f} % of a core')

    machine.must('install', '-m', '640', '-g', 'weir-clients', '/dev/null', '/etc/weir/api-keys')
    machine.write('/etc/weir/api-keys', 'first\n')
    machine.write('/etc/weir/weir.toml', config + 'api-key-file = "/etc/weir/api-keys"\n')
    machine.must('systemctl', 'restart', 'weir.service')
    allowed = lambda key: ask('/v1/models', headers={'Authorization': 'Bearer ' + key})[0]
    say((allowed('first'), allowed('second')) == (200, 401), 'a restart takes the configuration, and the service may read its keys',
        (allowed('first'), machine.run('journalctl', '-u', 'weir', '-n', '5', '-o', 'cat').stdout))
    machine.write('/etc/weir/api-keys', 'second\n')
    machine.must('systemctl', 'reload', 'weir.service')
    say(machine.show('weir.service', 'ActiveState') == ['active'], 'a reload ends', machine.show('weir.service', 'ActiveState', 'SubState'))
    time.sleep(0.5)
    say((allowed('first'), allowed('second')) == (401, 200), 'and takes the new keys', (allowed('first'), allowed('second')))

    machine.write('/etc/weir/weir.toml', config)
    done = machine.run('apt-get', '-qq', '-y', '--reinstall', 'install', '/weir.deb')
    say(done.returncode == 0 and machine.must('cat', '/etc/weir/weir.toml') == config, 'installing it again keeps the configuration', done.stdout)
    say(first_token() is not None, 'and the service goes on')

    machine.must('systemctl', 'kill', '-s', 'SIGKILL', 'weir.service')
    begin = time.monotonic()
    time.sleep(0.1)
    say(first_token() is not None, 'after SIGKILL it comes back by itself', machine.run('journalctl', '-u', 'weir', '-n', '9').stdout)
    note(f'first token after SIGKILL: {time.monotonic() - begin:.2f} s, of which 2 s are RestartSec=')
    machine.write('/etc/weir/weir.toml', config + 'unix-socket = "/run/weir/socket"\n')
    machine.must('systemctl', 'restart', 'weir.service')
    machine.must('systemctl', 'kill', '-s', 'SIGKILL', 'weir.service')
    time.sleep(3.5)
    state = machine.show('weir.service', 'ActiveState', 'NRestarts')
    say(state[0] == 'active', 'with a Unix socket too', (state, machine.run('journalctl', '-u', 'weir', '-n', '9').stdout))

    machine.write('/etc/weir/weir.toml', config)
    machine.must('systemctl', 'stop', 'weir.service')
    machine.must('mkdir', '-p', '/etc/systemd/system/weir.socket.d')
    machine.write('/etc/systemd/system/weir.socket.d/port.conf', f'[Socket]\nListenStream=\nListenStream=127.0.0.1:{PORT}\n')
    machine.must('systemctl', 'daemon-reload')
    machine.must('systemctl', 'start', 'weir.socket')
    say(machine.show('weir.service', 'ActiveState') == ['inactive'], 'a socket alone starts nothing')
    begin = time.monotonic()
    status, text = ask('/v1/completions', QUESTION)
    say(status == 200, 'the first request starts the service and is answered', text)
    note(f'socket activation, first token: {time.monotonic() - begin:.2f} s')
    machine.must('systemctl', 'stop', 'weir.service')
    say(machine.show('weir.socket', 'ActiveState', 'SubState') == ['active', 'listening'], 'the socket outlives the service', machine.show('weir.socket', 'SubState'))
    machine.must('systemctl', 'stop', 'weir.socket')

    machine.write('/opt/models/text.txt', 'The sun rises in the east and sets in the west. Water runs downhill. ' * 60)
    machine.write('/etc/weir/quality.conf', 'MODEL=/opt/models/model.gguf\nTEXT=/opt/models/text.txt\nRAM=512M\n')
    done = machine.run('systemctl', 'start', 'weir-quality.service')
    log = machine.run('journalctl', '-u', 'weir-quality', '-o', 'cat').stdout
    say(done.returncode == 0 and '"perplexity"' in log, 'the quality sample runs in its sandbox', log)

    machine.must('systemctl', 'enable', 'weir.service')
    machine.off()
    begin = time.monotonic()
    machine.boot()
    say(first_token() is not None, 'after a boot it is there')
    note(f'boot to first token: {time.monotonic() - begin:.2f} s')
    done = machine.run('apt-get', '-qq', '-y', 'remove', 'weir')
    say(done.returncode == 0 and ask('/health')[0] == 0, 'removing the package ends the service', done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('package')
    parser.add_argument('model')
    parser.add_argument('--root', default=os.path.expanduser('~/.cache/weir/debian-root'))
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit('check_package.py: needs root, for namespaces and mounts')
    prepare_root(options.root)
    count = [0, 0]

    def say(right, what, detail=None):
        count[0] += 1
        count[1] += not right
        print(f'{"ok" if right else "not ok"} {count[0]} - {what}', flush=True)
        if not right:
            print('# ' + str(detail)[-1500:].replace('\n', '\n# '), flush=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(options.root))) as folder:
        machine = Machine(os.path.abspath(options.root), folder)
        try:
            check(machine, options.package, options.model, say, lambda text: print('# ' + text, flush=True))
        finally:
            machine.off()
    print(f'1..{count[0]}')
    return 1 if count[1] else 0


if __name__ == '__main__':
    sys.exit(main())
