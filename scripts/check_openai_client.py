#!/usr/bin/env python3
"""The unmodified `openai` client from PyPI against `weir serve`.

usage: check_openai_client.py WEIR MODEL

Installs the client into a virtual environment in the cache folder (~/.cache/weir/openai-client; only the first time), starts the
server at a free port, and goes through chat, streams, stop strings, logprobs, errors and cancelling. MODEL: SmolLM2-135M-Instruct, whose
answers are known. Status 0 where all is right."""
import os
import pathlib
import re
import subprocess
import sys
import time

CACHE = pathlib.Path(os.environ.get('WEIR_CACHE') or os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'weir'))
FOLDER = CACHE / 'openai-client'


def in_environment():
    """Goes on in the environment that has the client."""
    python = FOLDER / 'bin' / 'python3'
    if not (FOLDER / 'ready').exists():
        subprocess.run([sys.executable, '-m', 'venv', FOLDER], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '-q', 'openai'], check=True)
        (FOLDER / 'ready').touch()
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


def start(weir, model):
    server = subprocess.Popen([weir, 'serve', model, '--port', '0', '--parallel', '2', '-c', '1024', '--activations', 'f32'], stderr=subprocess.PIPE, text=True)
    address = None
    for line in server.stderr:
        found = re.search(r'http://\S+:\d+', line)
        address = address or (found and found[0])
        if 'ready after' in line:
            return server, address
    sys.exit('the server did not start')


def check(client, openai):
    ask = {'model': client.models.list().data[0].id, 'temperature': 0, 'max_tokens': 16,
           'messages': [{'role': 'user', 'content': 'What is the capital of France?'}]}
    chat = client.chat.completions.create(**ask)
    text = chat.choices[0].message.content
    assert 'Paris' in text and chat.choices[0].finish_reason == 'stop' and chat.usage.completion_tokens > 0, chat
    print('chat:', text)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={'include_usage': True}))
    assert ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices) == text, chunks
    assert chunks[-1].usage.total_tokens == chat.usage.total_tokens, chunks[-1]
    print('stream:', len(chunks), 'chunks, the same text and usage')
    cut = client.chat.completions.create(**ask, stop=['France'])
    assert cut.choices[0].message.content == text.split('France')[0] and cut.choices[0].finish_reason == 'stop', cut
    print('stop:', cut.choices[0].message.content)
    probable = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert ''.join(t.token for t in probable) == text and all(len(t.top_logprobs) == 2 for t in probable), probable
    print('logprobs:', [(t.token, round(t.logprob, 2)) for t in probable[:4]])
    plain = client.completions.create(model='m', prompt='The sea', max_tokens=8, seed=3, logprobs=1)
    assert plain.choices[0].text and len(plain.choices[0].logprobs.tokens) == 8, plain
    assert plain.choices[0].text == client.completions.create(model='m', prompt='The sea', max_tokens=8, seed=3).choices[0].text
    print('completion:', repr(plain.choices[0].text), 'and the same again by its seed')
    for wrong, kind in ((dict(ask, temperature=-1), openai.BadRequestError), (dict(ask, messages=[]), openai.BadRequestError),
                        (dict(ask, messages=[{'role': 'user', 'content': 'word ' * 2000}]), openai.BadRequestError)):
        try:
            client.chat.completions.create(**wrong)
            raise AssertionError('taken')
        except kind as error:
            print('error:', error.body['message'] if error.body else error)
    stream = client.completions.create(model='m', prompt='Once', max_tokens=900, stream=True, extra_body={'ignore_eos': True})
    next(iter(stream))
    stream.close()
    busy = lambda: any(s['is_processing'] for s in client._client.get(str(client.base_url).replace('/v1/', '/slots')).json())
    begin = time.monotonic()
    while busy():
        assert time.monotonic() - begin < 10, 'a cancelled stream keeps its slot'
        time.sleep(0.02)
    print(f'cancel: the slot was free after {time.monotonic() - begin:.2f} s')


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if pathlib.Path(sys.prefix).resolve() != FOLDER.resolve():
        in_environment()
    import openai
    server, address = start(*sys.argv[1:])
    try:
        check(openai.OpenAI(base_url=address + '/v1', api_key='none', max_retries=0), openai)
    finally:
        server.terminate()
        status = server.wait(60)
    print('the server ended with status', status)
    return status


if __name__ == '__main__':
    sys.exit(main())
