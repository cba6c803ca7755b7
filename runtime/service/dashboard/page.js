'use strict';
// Asks the server how it is, while somebody looks, and shows it.

const Page = {
  kRoom: 120,        // seconds that charts show
  kWindow: 5,        // seconds that figures are means of
  kIdleMs: 1000,
  kBusyMs: 250,      // while tokens go by: the map moves
  kWarnings: {perplexity: 'Prompts are foretold worse than at the baseline: recalibrate', memory: 'The machine is short of memory',
              device: 'While reads bound, the storage gives less than its probe did', bytes_per_token: 'More is read for a token than must be'},
  history: [],       // a sample a second
  map: null, timer: 0, asking: false,

  state(text, kind) {
    say('state', text);
    byId('state-dot').className = 'dot ' + kind;
    document.body.classList.toggle('stale', kind === 'gone');
  },

  async json(path) {
    const response = await Server.fetch(path, {signal: AbortSignal.timeout(8000)});
    if (response.ok) return response.json();
    const error = new Error(String(response.status));
    error.status = response.status;
    throw error;
  },

  // One question at a time; none while nobody looks.
  async ask() {
    clearTimeout(Page.timer);
    if (document.hidden || Page.asking) return;
    Page.asking = true;
    let pause = Page.kIdleMs;
    try {
      if (Page.map === null) Page.setMap(await Page.json('dashboard/map'));
      const data = await Page.json('dashboard/data');
      const last = Page.history[Page.history.length - 1];
      if (last && (data.tokens < last.tokens || data.time_s < last.time_s)) {  // another process by now
        Page.history = [];
        Page.setMap(await Page.json('dashboard/map'));
      }
      Page.show(data);
      if (data.layer !== null) pause = Page.kBusyMs;
    } catch (error) {
      pause = Page.failed(error);
    }
    Page.asking = false;
    if (pause > 0 && !document.hidden) Page.timer = setTimeout(Page.ask, pause);
  },

  failed(error) {
    if (error.status === 401) {
      Page.wantKey();
      return 0;
    }
    if (error.status === 503) Page.state('loading the model', 'busy');
    else Page.state(error.status ? `the server answers ${error.status}` : 'the server is not to be reached', 'gone');
    return 2000;
  },

  wantKey() {
    Page.state('waits for an API key', 'busy');
    byId('key-error').hidden = Server.key() === '';
    byId('key-button').hidden = true;
    byId('key-form').hidden = false;
    byId('key').focus();
  },

  setMap(map) {
    Page.map = map;
    WeightMap.set(map);
    document.title = map.name + ' · Weir';
    say('facts', [map.name, map.architecture, `paging ${map.paging}`, `${map.slots} slots of ${Figures.number(map.context)} tokens`, `${map.threads} threads`].join(' · '));
    byId('key-button').hidden = Server.key() === '';
    say('precision', `${Figures.short(map.mean_bits)} bits a weight, ${map.planned ? 'by plan' : 'by file'}`);
    say('pass-bytes', Figures.words(Figures.size(map.pass_bytes)));
  },

  // How much something grew over the last seconds: {seconds, of: (name) => amount}.
  lately(seconds) {
    const h = Page.history, last = h[h.length - 1];
    const first = h.find((s) => s.time_s >= last.time_s - seconds - 0.2) || last;
    return {seconds: last.time_s - first.time_s, of: (name) => last[name] - first[name]};
  },

  // A value for each pair of neighbouring samples.
  series(value) {
    const h = Page.history, made = [];
    for (let i = 1; i < h.length; ++i) made.push(value((name) => h[i][name] - h[i - 1][name], h[i].time_s - h[i - 1].time_s));
    return made;
  },

  show(data) {
    const h = Page.history;
    if (h.length > 0 && data.time_s - h[h.length - 1].time_s > 30) h.length = 0;  // nobody looked: no line across the gap
    const due = h.length === 0 || data.time_s - h[h.length - 1].time_s > 0.9;
    if (due) {
      h.push(data);
      if (h.length > Page.kRoom + 1) h.shift();
    }
    const busy = data.slots.filter((s) => s.state !== 'idle').length;
    Page.state(busy === 0 ? 'idle' : `answering ${busy} of ${data.slots.length}`, busy === 0 ? 'ready' : 'busy');
    const warned = data.warnings.map((name) => Page.kWarnings[name] || name);
    byId('warnings').hidden = warned.length === 0;
    say('warnings', warned.join(' · '));
    WeightMap.show(data);
    Page.showSlots(data);
    Page.showEntropy(data);
    if (due) Page.showRates(data);
    Page.showMemory(data);
  },

  showRates(data) {
    const lately = Page.lately(Page.kWindow), seconds = lately.seconds || 1;
    const speed = lately.of('tokens') / seconds;
    say('speed', Figures.short(speed));
    say('speed-note', `${Figures.number(data.tokens)} tokens since the start, ${Figures.number(data.prompt_tokens)} of prompts`);
    Charts.seconds(byId('speed-chart'), Page.series((of, s) => of('tokens') / s), Page.kRoom, [], 1);
    Page.showReads(data, lately, seconds);
    const stall = Math.min(1, lately.of('stall_s') / seconds);
    say('stall', Figures.percent(stall));
    say('stall-note', `waiting for weights · ${Figures.short(lately.of('waits') / seconds)} waits/s · ${Figures.number(data.faults)} faults since the start`);
    Charts.seconds(byId('stall-chart'), Page.series((of, s) => Math.min(1, of('stall_s') / s)), Page.kRoom, [], 0.25);
  },

  // Beside the device's limit: by a probe at the start, or else what it gives while it reads.
  showReads(data, lately, seconds) {
    const [value, unit] = Figures.rate(lately.of('read_bytes') / seconds), mode = Page.map.paging;
    say('reads', value);
    say('reads-unit', unit);
    const gives = (bytes, s) => s > 0.02 ? bytes / s : NaN;
    const now = gives(lately.of('read_bytes'), lately.of('read_s')), ever = gives(data.read_bytes, data.read_s);
    const probed = Page.map.device_bytes_per_s, limit = probed > 0 ? () => probed : (of) => gives(of('read_bytes'), of('read_s'));
    let note = {mmap: 'the kernel reads: not measured', resident: 'all weights are in memory', advised: 'the device alone is not measured in this mode'}[mode];
    if (probed > 0 && mode === 'uffd') {
      note = `${Figures.percent(lately.of('read_bytes') / seconds / probed)} % of the ${Figures.words(Figures.rate(probed))} that the device gives` +
             `; reads ${Figures.percent(Math.min(1, lately.of('read_s') / seconds))} % of the time`;
    } else if (Number.isFinite(now)) {
      note = `the device gives ${Figures.words(Figures.rate(now))} while it reads: ${Figures.percent(Math.min(1, lately.of('read_s') / seconds))} % of the time`;
    } else if (Number.isFinite(ever)) {
      note = `idle; the device gave ${Figures.words(Figures.rate(ever))} while it read`;
    }
    say('reads-note', note || 'nothing was read yet');
    Charts.seconds(byId('reads-chart'), Page.series((of, s) => of('read_bytes') / s), Page.kRoom, Page.series(limit), 1e6);
    const tokens = Page.lately(Page.kRoom).of('passes');
    if (tokens > 0) say('token-bytes', `${Figures.words(Figures.size(Page.lately(Page.kRoom).of('read_bytes') / tokens))} a pass`);
  },

  showMemory(data) {
    const [value, unit] = Figures.size(data.memory_bytes), [budget, budgetUnit] = Figures.size(data.budget_bytes);
    say('memory', value);
    say('memory-unit', (unit === budgetUnit ? '' : unit + ' ') + `of ${budget} ${budgetUnit}`);
    const parts = data.frame_bytes > 0 ? [`weights may take ${Figures.words(Figures.size(data.frame_bytes))}`] : [];
    say('memory-note', [...parts, `KV caches ${Figures.words(Figures.size(Page.map.kv_cache_bytes))}`].join(' · '));
    Charts.level(byId('memory-chart'), data.memory_bytes / data.budget_bytes);
  },

  showEntropy(data) {
    const nats = data.entropies, mean = nats.reduce((a, b) => a + b, 0) / nats.length;
    say('entropy', nats.length > 0 ? Figures.number(mean, 2) : '–');
    say('entropy-note', nats.length > 0 ? `${nats.length} tokens, ${Figures.number(Math.min(...nats), 2)} to ${Figures.number(Math.max(...nats), 2)} nats; the newest at the right`
                                        : 'measured while this page is looked at: no token yet');
    Charts.bars(byId('entropy-chart'), nats, 2);
    const drift = data.perplexity_drift;
    say('drift', typeof drift === 'number' ? `${Figures.number(drift, 3)} × the baseline` : 'not measured yet');
    byId('drift').title = `${Figures.number(data.scored_tokens)} tokens of prompts scored so far`;
    byId('drift').className = typeof drift === 'number' ? '' : 'none';
  },

  showSlots(data) {
    const list = byId('slots'), context = Page.map.context;
    while (list.children.length > data.slots.length) list.lastChild.remove();
    while (list.children.length < data.slots.length) {
      const item = document.createElement('li'), bar = document.createElement('div');
      bar.append(document.createElement('i'));
      item.append(document.createElement('span'), bar, document.createElement('span'));
      list.append(item);
    }
    data.slots.forEach((slot, i) => {
      const [number, bar, text] = list.children[i].children;
      number.textContent = String(i);
      bar.className = slot.state === 'idle' ? 'bar' : 'bar works';
      bar.firstChild.style.width = `${100 * Math.min(1, slot.cached / context)}%`;
      list.children[i].title = `${slot.cached} of ${context} tokens in the KV cache`;
      const words = {idle: slot.cached > 0 ? `idle, ${slot.cached} cached` : 'idle', prompt: `prompt of ${slot.prompt}`, decode: `${slot.generated} tokens`};
      text.textContent = words[slot.state];
    });
    for (const name of ['waiting', 'finished', 'cancelled', 'failed', 'refused']) say(name, Figures.number(data[name]));
  },
};

const Theme = {
  kKey: 'weir-theme',
  system: matchMedia('(prefers-color-scheme: dark)'),
  choice: 'auto',
  apply() {
    const dark = Theme.choice === 'dark' || (Theme.choice === 'auto' && Theme.system.matches);
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    say('theme', 'Theme: ' + Theme.choice);
    Page.redraw();
  },
  listen() {
    try { Theme.choice = localStorage.getItem(Theme.kKey) || 'auto'; } catch { /* then it is not remembered */ }
    Theme.apply();
    Theme.system.addEventListener('change', Theme.apply);
    byId('theme').addEventListener('click', () => {
      Theme.choice = {auto: 'light', light: 'dark', dark: 'auto'}[Theme.choice] || 'auto';
      try { localStorage.setItem(Theme.kKey, Theme.choice); } catch { /* as above */ }
      Theme.apply();
    });
  },
};

Page.redraw = () => {
  const last = Page.history[Page.history.length - 1];
  if (Page.map === null || last === undefined) return;
  WeightMap.draw();
  Page.showEntropy(last);
  Page.showRates(last);
  Page.showMemory(last);
};

Theme.listen();
WeightMap.listen();
Chat.listen();
Chat.onKeyWanted = Page.wantKey;
byId('key-button').addEventListener('click', () => {
  byId('key-form').hidden = false;
  byId('key').focus();
});
byId('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  Server.setKey(byId('key').value.trim());
  byId('key').value = '';
  byId('key-form').hidden = true;
  Page.ask();
});
document.addEventListener('visibilitychange', Page.ask);
window.addEventListener('resize', Page.redraw);
Page.ask();
