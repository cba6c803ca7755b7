#!/usr/bin/env python3
"""`weir serve` and `weir chat` with --precision auto, on a native file that it makes of a small model. Prints TAP.

usage: precision_test.py WEIR SHARED     the material's folder, unless WEIR_SHARED names it; SKIP where the model is not there"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

PROMPT = {'prompt': 'Once upon a time there was a', 'max_tokens': 40, 'temperature': 0, 'ignore_eos': True}
TEXT = 'Once upon a time there was a little girl who lived near the sea. She had a red ball and a small dog. One day they went to the park. '


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log, self.port = '', None
        for line in self.process.stderr:
            self.log += line
            found = re.search(r'127\.0\.0\.1:(\d+)', line)
            self.port = int(found[1]) if found else self.port
            if 'ready after' in line:
                break

    def ask(self, path, body=None):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        connection.request('GET' if body is None else 'POST', path, body and json.dumps(body))
        return connection.getresponse().read().decode()

    def metrics(self):
        """{name and labels: value}"""
        return {name: float(value) for name, value in re.findall(r'^([^#\n]+) ([^ \n]+)$', self.ask('/metrics'), re.M)}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def total(metrics, name):
    return sum(value for key, value in metrics.items() if key.startswith(name + '{'))


def main():
    weir, model = sys.argv[1], os.path.join(os.environ.get('WEIR_SHARED') or sys.argv[2], 'models', 'stories260K-F16.gguf')
    if not os.path.exists(model):
        print('1..1\nnot ok 1 - the model is required' if os.environ.get('WEIR_REQUIRE_MATERIAL') == '1' else '1..0 # SKIP the model is not here')
        return 0
    count = 0

    def say(right, what, detail=None):
        nonlocal count
        count += 1
        print(f'{"ok" if right else "not ok"} {count} - {what}', flush=True)
        if not right:
            print('# ' + repr(detail)[:1000], flush=True)

    def run(*command, stdin=None):
        return subprocess.run([weir, *command], input=stdin, capture_output=True, text=True, timeout=120, check=False)

    with tempfile.TemporaryDirectory() as folder:
        native, memory, trace, text = (os.path.join(folder, name) for name in ('m.weir', 'plans', 'trace', 'text'))
        with open(text, 'w') as out:
            out.write(TEXT * 8)
        run('convert', model, native)

        def refused(*command):
            done = run(*command)
            return done.returncode == 2 and done.stderr.strip().split('\n')[-1]
        auto = ['--precision', 'auto', '--paging', 'resident']
        serve = ['serve', native, '--port', '0', '-c', '256']
        say('weir calibrate' in (refused(*serve, *auto) or ''), 'without a table it is said how to make one')
        run('calibrate', native, '-f', text, '-c', '32', '--windows', '2', '--paging', 'resident')
        say('plain GGUF' in (refused('serve', model, '--port', '0', *auto) or ''), 'plain GGUF has one precision')
        say("weir run's alone" in (refused(*serve, '--precision', 'auto-exact') or ''), 'auto-exact is for run')
        say('belong to' in (refused(*serve, '--plan-memory', memory) or ''), 'a memory of plans is for auto')

        server = Server([weir, *serve, *auto, '--plan-memory', memory])
        say(json.loads(server.ask('/props'))['precision'] == 'auto' and 'precision=auto' in server.log, 'what is served is said', server.log)
        before = server.metrics()
        answer = json.loads(server.ask('/v1/completions', PROMPT))
        used, after = answer['timings']['precision'], server.metrics()
        say(sum(used['tokens']) == 39 and used['remembered'] is False, 'an answer says which plans its tokens had', answer)
        say([after.get(f'weir_plan_tokens_total{{plan="{p}"}}') for p in range(len(used['tokens']))] == used['tokens'], 'so do metrics', after)
        bits = {k: v for k, v in after.items() if k.startswith('weir_layer_bits{')}
        say(after['weir_plan_switches_total'] > 0 and after['weir_plan_changes_total'] > 0 and before['weir_plan_changes_total'] == 0,
            'switches are counted', after)
        say(bits and any(v < 8 for v in bits.values()) and total(before, 'weir_layer_bits') > sum(bits.values()),
            'bits are those of the last pass', (before, bits))
        say(server.stop() == 0 and os.path.exists(memory), 'where prompts ended is kept', server.process.returncode)

        again = Server([weir, *serve, *auto, '--plan-memory', memory])
        used = json.loads(again.ask('/v1/completions', PROMPT))['timings']['precision']
        say(used['remembered'] is True and again.metrics()['weir_plans_remembered_total'] == 1, 'and found by the next service', used)
        events = again.ask('/v1/completions', {**PROMPT, 'stream': True, 'stream_options': {'include_usage': True}})
        say('"remembered":true' in events, 'a stream ends with the same figures', events[-400:])
        again.stop()
        result = run('run', native, *auto, '-p', PROMPT['prompt'], '-n', '8', '--temp', '0', '--plan-memory', memory, '--json', '-q')
        say(json.loads(result.stdout)['precision']['remembered'] is True, 'and by run', result.stderr)

        os.remove(memory)
        result = run('chat', native, *auto, '--chat-template', 'chatml', '-n', '12', '--temp', '0', '--plan-memory', memory, '--trace-precision', trace,
                     stdin='a girl and a dog\nand a ball\n/stats\n')
        tokens = re.search(r'tokens by plan, finest first:((?: \d+)+)', result.stderr)
        say(result.returncode == 0 and tokens, 'a chat adapts, too, and says so', result.stderr)
        with open(trace) as lines:
            traced = sum(not line.startswith('#') for line in lines)
        say(tokens and sum(map(int, tokens[1].split())) == traced > 0 and os.path.exists(memory), 'with its trace and memory', (tokens, traced))
        say('for weir run, chat and serve' in (refused('plan', native, '--precision', 'auto') or ''), 'others take a level')
    print(f'1..{count}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
