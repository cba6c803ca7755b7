#!/usr/bin/env python3
"""Runs `weir serve` under the seccomp profile that is installed for containers, applied by libseccomp as container runtimes do.
Prints TAP.

usage: seccomp_test.py WEIR PROFILE.json
       seccomp_test.py --under PROFILE.json COMMAND...     runs the command under it
       seccomp_test.py --refused PROFILE.json              lists system calls that must fail under it, and do not"""
import ctypes
import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

# seccomp.h
ALLOW, ERRNO = 0x7fff0000, 0x00050000
COMPARISONS = {'SCMP_CMP_NE': 1, 'SCMP_CMP_LT': 2, 'SCMP_CMP_LE': 3, 'SCMP_CMP_EQ': 4, 'SCMP_CMP_GE': 5, 'SCMP_CMP_GT': 6, 'SCMP_CMP_MASKED_EQ': 7}
CLONE_NEWUSER = 0x10000000


class Argument(ctypes.Structure):
    _fields_ = [('index', ctypes.c_uint), ('op', ctypes.c_int), ('a', ctypes.c_uint64), ('b', ctypes.c_uint64)]


def library():
    seccomp = ctypes.CDLL('libseccomp.so.2', use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_init.argtypes = [ctypes.c_uint32]
    seccomp.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Argument)]
    seccomp.seccomp_load.argtypes = [ctypes.c_void_p]
    return seccomp


def apply(path):
    """Puts this process under the profile. Names that this architecture does not have are passed over, as runtimes do."""
    with open(path) as text:
        profile = json.load(text)
    seccomp = library()
    action = lambda rule, name, error: ALLOW if rule[name] == 'SCMP_ACT_ALLOW' else ERRNO | rule.get(error, errno.EPERM)
    context = seccomp.seccomp_init(action(profile, 'defaultAction', 'defaultErrnoRet'))
    for rule in profile['syscalls']:
        arguments = [Argument(a['index'], COMPARISONS[a['op']], a['value'], a.get('valueTwo', 0)) for a in rule.get('args', [])]
        array = (Argument * len(arguments))(*arguments)
        for name in rule['names']:
            number = seccomp.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                continue
            result = seccomp.seccomp_rule_add_array(context, action(rule, 'action', 'errnoRet'), number, len(arguments), array)
            if result != 0:
                sys.exit(f'{name}: {os.strerror(-result)}')
    result = seccomp.seccomp_load(context)
    if result != 0:
        sys.exit(f'the profile cannot be loaded: {os.strerror(-result)}')


def refused(path):
    libc = ctypes.CDLL(None, use_errno=True)
    apply(path)
    calls = {'unshare': lambda: libc.unshare(CLONE_NEWUSER), 'mount': lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),
             'ptrace': lambda: libc.ptrace(0, 0, 0, 0), 'swapoff': lambda: libc.swapoff(b'/nowhere'), 'chroot': lambda: libc.chroot(b'/'),
             'setns': lambda: libc.setns(0, 0), 'socket of packets': lambda: libc.socket(17, 3, 0)}
    for name, call in calls.items():
        if call() != -1 or ctypes.get_errno() != errno.EPERM:
            print(name)


def ask(connection, method, path, body=None):
    connection.request(method, path, body and json.dumps(body))
    response = connection.getresponse()
    return response.status, response.read().decode()


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def main():
    weir, profile = sys.argv[1:3]
    try:
        library()
    except OSError:
        print('1..1\nnot ok 1 - libseccomp is required' if os.environ.get('WEIR_REQUIRE_MATERIAL') == '1' else '1..0 # SKIP libseccomp is not here')
        return 0
    print('1..8')

    def say(number, right, what, detail=None):
        print(f'{"ok" if right else "not ok"} {number} - {what}', flush=True)
        if not right:
            print('# ' + repr(detail)[:1500], flush=True)

    def serve(first, folder, where, *options):
        process = subprocess.Popen([sys.executable, __file__, '--under', profile, weir, 'serve', os.path.join(folder, 'model.gguf'), *where, '-c', '128',
                                    '--ram', '300M', *options], stderr=subprocess.PIPE, text=True)
        log, port = [], None
        for line in process.stderr:
            log.append(line)
            found = re.search(r'127\.0\.0\.1:(\d+)', line)
            port = int(found[1]) if found else port
            if 'ready after' in line:
                break
        new = lambda: http.client.HTTPConnection('127.0.0.1', port, timeout=60) if port else UnixConnection(where[1])
        try:
            text = [ask(new(), 'POST', '/v1/completions', {'prompt': 'a', 'max_tokens': 4, 'ignore_eos': True, 'stream': stream}) for stream in (False, True)]
            say(first, [t[0] for t in text] == [200, 200] and '[DONE]' in text[1][1], 'requests are answered under the profile', text)
            say(first + 1, ask(new(), 'GET', '/metrics')[0] == 200, 'and metrics')
        except OSError as error:
            say(first, False, 'requests are answered under the profile', (error, log))
        process.send_signal(signal.SIGTERM)
        say(first + 2, process.wait(60) == 0, 'and it ends as it should', process.returncode)
        return ''.join(log)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([weir, 'synth', '--shape', '1.1b', '--layers', '2', '--vocab', '2000', '--type', 'q4_0', '-o', os.path.join(folder, 'model.gguf')],
                       check=True, capture_output=True)
        log = serve(1, folder, ('--port', '0'))
        say(4, 'uffd=user-mode-only' in log and 'reader=io_uring' in log, 'it leaves userfaultfd and io_uring', log)
        serve(5, folder, ('--unix-socket', os.path.join(folder, 'socket')), '--reader', 'pread', '--io', 'buffered')
    left = subprocess.run([sys.executable, __file__, '--refused', profile], capture_output=True, text=True, check=False)
    say(8, left.returncode == 0 and not left.stdout, 'and refuses what else there is', left)
    return 0


if __name__ == '__main__':
    if sys.argv[1] == '--under':
        apply(sys.argv[2])
        os.execv(sys.argv[3], sys.argv[3:])
    sys.exit(refused(sys.argv[2]) if sys.argv[1] == '--refused' else main())
