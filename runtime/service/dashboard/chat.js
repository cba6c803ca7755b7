'use strict';
// A chat through /v1/chat/completions, as any other client has it. What the model says is text and never markup.

const Chat = {
  turns: [],       // what the model is told
  stopper: null,   // of the answer under way
  onKeyWanted: () => {},

  add(role, text) {
    const turn = document.createElement('div'), body = document.createElement('div');
    turn.className = 'turn ' + role;
    body.className = 'text';
    body.textContent = text;
    turn.append(body);
    byId('chat-empty').hidden = true;
    byId('chat-log').append(turn);
    Chat.scroll(true);
    return turn;
  },

  note(turn, text, bad = false) {
    const meta = document.createElement('p');
    meta.className = bad ? 'meta error' : 'meta';
    meta.textContent = text;
    turn.append(meta);
    Chat.scroll(true);
  },

  // To the end, unless somebody reads further up.
  scroll(always) {
    const log = byId('chat-log');
    if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 60) log.scrollTop = log.scrollHeight;
  },

  works(yes) {
    byId('chat-send').hidden = yes;
    byId('chat-stop').hidden = !yes;
    byId('chat-clear').disabled = yes || byId('chat-log').querySelector('.turn') === null;
  },

  // The events of a stream, as they come.
  async *events(response) {
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let held = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      held += decoder.decode(value, {stream: true});
      for (let end = held.indexOf('\n\n'); end >= 0; end = held.indexOf('\n\n')) {
        const event = held.slice(0, end);
        held = held.slice(end + 2);
        if (event.startsWith('data: ') && event !== 'data: [DONE]') yield JSON.parse(event.slice(6));
      }
    }
  },

  async send(text) {
    const asked = Chat.add('user', text), answer = Chat.add('assistant', ''), body = answer.querySelector('.text');
    const turns = [...Chat.turns, {role: 'user', content: text}];
    let said = '', tokens = 0, first = 0, failed = '', finish = '';
    Chat.stopper = new AbortController();
    Chat.works(true);
    try {
      const response = await Server.fetch('v1/chat/completions', {
        method: 'POST', signal: Chat.stopper.signal, headers: {'Content-Type': 'application/json'},
        body: JSON.stringify({messages: turns, stream: true, stream_options: {include_usage: true}})});
      if (response.status === 401) Chat.onKeyWanted();
      if (!response.ok) {
        const why = await response.json().catch(() => null);
        throw new Error(why && why.error && why.error.message || `the server answers ${response.status}`);
      }
      for await (const event of Chat.events(response)) {
        if (event.error) throw new Error(event.error.message);
        const choice = event.choices && event.choices[0];
        if (choice && choice.delta && choice.delta.content) {
          if (first === 0) first = performance.now();
          said += choice.delta.content;
          body.textContent = said;
          Chat.scroll(false);
        }
        if (choice && choice.finish_reason) finish = choice.finish_reason;
        if (event.usage) tokens = event.usage.completion_tokens;
      }
    } catch (error) {
      failed = error.name === 'AbortError' ? 'stopped' : error.message;
    }
    const seconds = (performance.now() - first) / 1000;
    if (failed === 'stopped') Chat.note(answer, 'stopped');
    else if (failed !== '') Chat.note(answer, failed, true);
    else if (tokens > 1) Chat.note(answer, `${tokens} tokens · ${Figures.short((tokens - 1) / seconds)} tokens/s` + (finish === 'length' ? ' · cut off at the limit' : ''));
    if (said !== '') {
      Chat.turns = [...turns, {role: 'assistant', content: said}];
    } else {
      // As if it had not been asked: models want question and answer by turns.
      if (byId('chat-text').value === '') byId('chat-text').value = text;
      asked.classList.add('unanswered');
    }
    Chat.stopper = null;
    Chat.works(false);
  },

  listen() {
    const form = byId('chat-form'), field = byId('chat-text');
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text === '' || Chat.stopper !== null) return;
      field.value = '';
      Chat.send(text);
    });
    field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    byId('chat-stop').addEventListener('click', () => Chat.stopper && Chat.stopper.abort());
    byId('chat-clear').addEventListener('click', () => {
      Chat.turns = [];
      for (const turn of [...byId('chat-log').querySelectorAll('.turn')]) turn.remove();
      byId('chat-empty').hidden = false;
      Chat.works(false);
      field.focus();
    });
  },
};
