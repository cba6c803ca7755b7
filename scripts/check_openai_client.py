#!/usr/bin/env python3
"""The unmodified `openai` clients from PyPI and npm against `weir serve`.

usage: check_openai_client.py WEIR MODEL

Installs the clients into the cache folder (~/.cache/weir/openai-client; only the first time; npm's where there is node), starts
the server at a free port, and goes through chat, streams, stop strings, logprobs, JSON schemas, embeddings, errors and cancelling;
then through tools, with a template of the Qwen family. MODEL: SmolLM2-135M-Instruct, whose answers are known. Status 0 where all is
right."""
import json
import os
import pathlib
import re
import shutil
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
    if shutil.which('npm') and not (FOLDER / 'node_modules' / 'openai').exists():
        subprocess.run(['npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', FOLDER, 'openai'], check=True)
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


CITY = {'type': 'object', 'properties': {'city': {'type': 'string', 'maxLength': 20}, 'size': {'type': 'string', 'enum': ['small', 'large']}},
        'required': ['city', 'size'], 'additionalProperties': False}
ADD = {'type': 'function', 'function': {'name': 'add', 'description': 'Adds two numbers.', 'parameters': {
    'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}, 'required': ['a', 'b'], 'additionalProperties': False}}}


def start(weir, model, *options):
    server = subprocess.Popen([weir, 'serve', model, '--port', '0', '--parallel', '2', '-c', '1024', '--activations', 'f32', *options],
                              stderr=subprocess.PIPE, text=True)
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
    form = {'type': 'json_schema', 'json_schema': {'name': 'city', 'strict': True, 'schema': CITY}}
    made = json.loads(client.chat.completions.create(**{**ask, 'max_tokens': 80}, response_format=form).choices[0].message.content)
    assert list(made) == ['city', 'size'] and made['size'] in ('small', 'large'), made
    print('JSON schema:', made)
    vector = client.embeddings.create(model='m', input=['Paris', 'London']).data[1].embedding
    assert abs(sum(x * x for x in vector) - 1) < 1e-4, vector
    print('embeddings:', len(vector), 'numbers')
    plain = client.completions.create(model='m', prompt='The sea', max_tokens=8, seed=3, logprobs=1)
    assert plain.choices[0].text and len(plain.choices[0].logprobs.tokens) == 8, plain
    assert plain.choices[0].text == client.completions.create(model='m', prompt='The sea', max_tokens=8, seed=3).choices[0].text
    print('completion:', repr(plain.choices[0].text), 'and the same again by its seed')
    for wrong, kind in ((dict(ask, temperature=-1), openai.BadRequestError), (dict(ask, messages=[]), openai.BadRequestError),
                        (dict(ask, tools=[ADD]), openai.BadRequestError),
                        (dict(ask, response_format={'type': 'json_schema', 'json_schema': {'name': 'x', 'schema': {'not': {}}}}), openai.BadRequestError),
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


def check_tools(client):
    ask = {'model': 'm', 'temperature': 0, 'max_tokens': 100, 'tools': [ADD], 'messages': [{'role': 'user', 'content': 'What is 2 + 3?'}]}
    for choice in ('required', {'type': 'function', 'function': {'name': 'add'}}):
        answer = client.chat.completions.create(**ask, tool_choice=choice, parallel_tool_calls=False).choices[0]
        call = answer.message.tool_calls[0]
        assert answer.finish_reason == 'tool_calls' and call.type == 'function' and set(json.loads(call.function.arguments)) == {'a', 'b'}, answer
        streamed = ''
        for chunk in client.chat.completions.create(**ask, tool_choice=choice, parallel_tool_calls=False, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                streamed += delta.function.arguments or ''
        assert streamed == call.function.arguments, (streamed, call)
        print('tools:', call.function.name, call.function.arguments, 'whole and as a stream')
    history = [*ask['messages'], answer.message, {'role': 'tool', 'tool_call_id': call.id, 'content': '5'}]
    after = client.chat.completions.create(**{**ask, 'messages': history}).choices[0]
    print('after the tool:', repr(after.message.content), after.finish_reason)


def served(weir, model, use, *options):
    server, address = start(weir, model, *options)
    try:
        use(address + '/v1')
    finally:
        server.terminate()
        status = server.wait(60)
    print('the server ended with status', status)
    return status


def check_node(base):
    if not shutil.which('node'):
        return print('npm: no node here')
    script = pathlib.Path(__file__).with_name('check_openai_client.mjs')
    subprocess.run(['node', str(script), str(FOLDER), base], check=True)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if pathlib.Path(sys.prefix).resolve() != FOLDER.resolve():
        in_environment()
    import openai
    client = lambda base: openai.OpenAI(base_url=base, api_key='none', max_retries=0)

    def use(base):
        check(client(base), openai)
        check_node(base)
    return served(*sys.argv[1:], use) or served(*sys.argv[1:], lambda base: check_tools(client(base)), '--chat-template', 'qwen')


if __name__ == '__main__':
    sys.exit(main())
