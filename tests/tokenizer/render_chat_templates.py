#!/usr/bin/env python3
"""Renders every conversation of chat_conversations.json by every template of chat_templates/, as Jinja2 does it with the
settings that chat templates are written for, into chat_golden.json: what the chat module must say, byte for byte.

usage: render_chat_templates.py            writes chat_golden.json anew
       render_chat_templates.py --check    fails where it differs from what Jinja2 says now; status 77 where there is no Jinja2"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
BOS, EOS = '<BOS>', '<EOS>'
DATE = {'%d %b %Y': '05 Dec 2026', '%B %d, %Y': 'December 05, 2026'}
# Templates that have tools which the module knows too. A template whose tools it does not know refuses them, and says so.
WITH_TOOLS = ('qwen2.5', 'qwen3')


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def environment(jinja2_sandbox):
    made = jinja2_sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.filters['tojson'] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals['raise_exception'] = refuse
    made.globals['strftime_now'] = lambda form: DATE[form]
    return made


def render(jinja, conversation):
    given = {'messages': conversation['messages'], 'bos_token': BOS, 'eos_token': EOS,
             'add_generation_prompt': conversation.get('generate', True)}
    if 'tools' in conversation:
        given['tools'] = conversation['tools']
    if 'thinking' in conversation:
        given['enable_thinking'] = conversation['thinking']
    try:
        return {'text': jinja.render(**given)}
    except Refused as refused:
        return {'refused': str(refused)}


def main():
    try:
        from jinja2 import sandbox
    except ImportError:
        print('no jinja2 here (Debian: python3-jinja2)')
        return 77
    conversations = json.loads((HERE / 'chat_conversations.json').read_text())
    golden = []
    for path in sorted((HERE / 'chat_templates').glob('*.jinja')):
        jinja = environment(sandbox).from_string(path.read_text())
        for conversation in conversations:
            if 'tools' in conversation and path.stem not in WITH_TOOLS:
                continue
            golden.append({'template': path.stem, 'conversation': conversation['name']} | render(jinja, conversation))
    text = json.dumps(golden, ensure_ascii=False, indent=1) + '\n'
    if '--check' in sys.argv[1:]:
        if text == (HERE / 'chat_golden.json').read_text():
            return 0
        print('chat_golden.json is not what Jinja2 makes of these templates now: run render_chat_templates.py')
        return 1
    (HERE / 'chat_golden.json').write_text(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
