'use strict';
// The weights as a map: a row for each layer, a column for each module, in a cell its units (Extents, or experts) side by side.
// A bar is as high as its weights have bits.

const WeightMap = {
  kNames: {qk: 'query + key', vo: 'value + output', gate_up: 'gate + up', down: 'down', experts: 'experts', head: 'head'},
  kStates: [['R', 'resident', 'in memory, and stays'], ['s', 'passing', 'in memory until it has been used'], ['r', 'reading', 'being read'],
            ['.', 'absent', 'in the file only'], ['k', 'kernel', 'left to the kernel']],
  kWords: {R: 'resident', s: 'streaming', r: 'being read', '.': 'absent', k: 'as the kernel pleases'},
  kTrailMs: 2500,  // how long it is seen that a unit has passed
  cells: [], columns: [], layers: 0, units: '', layer: null, passedAt: [], chosen: null, at: [],

  set(map) {
    const m = WeightMap;
    m.facts = map;
    m.cells = map.cells;
    m.layers = Math.max(...m.cells.map((c) => c.layer));
    m.maxBits = Math.min(8, Math.max(...m.cells.map((c) => c.bits)));
    m.chosen = null;
    m.passedAt = [];
    const modules = ['qk', 'vo', 'gate_up', 'down', 'experts'].filter((name) => m.cells.some((c) => c.module === name));
    const weights = modules.map((name) => m.cells.reduce((sum, c) => sum + (c.module === name ? c.weights : 0), 0));
    const all = weights.reduce((a, b) => a + b, 0);
    // As wide as its weights are many, but wide enough to be seen.
    const wide = weights.map((w) => Math.max(w / all, 0.12));
    const sum = wide.reduce((a, b) => a + b, 0);
    m.columns = modules.map((name, i) => ({name, share: wide[i] / sum}));
  },

  show(data) {
    const m = WeightMap, now = performance.now();
    m.units = data.units;
    m.layer = data.layer;
    for (let u = 0; u < m.units.length; ++u) if (m.units[u] === 's' || m.units[u] === 'r') m.passedAt[u] = now;
    m.draw();
    m.legend();
    m.tell();
  },

  counts(units) {
    const found = {};
    for (const u of units) found[u] = (found[u] || 0) + 1;
    return found;
  },

  legend() {
    const m = WeightMap, found = m.counts(m.units), list = byId('legend');
    const kept = m.kStates.filter(([letter]) => letter in found || (letter !== 'k' && !('k' in found)));
    while (list.children.length > kept.length) list.lastChild.remove();
    while (list.children.length < kept.length) {
      const item = document.createElement('li');
      item.append(document.createElement('i'), document.createElement('span'), document.createElement('b'));
      list.append(item);
    }
    kept.forEach(([letter, colour, title], i) => {
      const [mark, name, share] = list.children[i].children;
      mark.style.background = `var(--${colour})`;
      list.children[i].title = title;
      name.textContent = m.kWords[letter];
      share.textContent = Figures.percent((found[letter] || 0) / m.units.length) + ' %';
    });
    const about = kept.map(([letter]) => `${Figures.percent((found[letter] || 0) / m.units.length)} % ${m.kWords[letter]}`).join(', ');
    byId('map').setAttribute('aria-label', `Map of the weights, ${m.layers} layers: ${about}`);
  },

  draw() {
    const m = WeightMap, canvas = byId('map');
    if (m.cells.length === 0) return;
    const row = Math.max(6, Math.min(17, Math.floor(470 / (m.layers + 1)))), top = 20, left = 44;
    const at = Charts.begin(canvas, top + (m.layers + 1) * row + 6);
    if (at === null) return;
    const {context, width} = at, gap = 8, now = performance.now();
    const colours = {R: Charts.colour('resident'), s: Charts.colour('passing'), r: Charts.colour('reading'), '.': Charts.colour('absent'), k: Charts.colour('kernel')};
    const passed = Charts.colour('passed'), soft = Charts.colour('soft');
    const space = width - left - gap * (m.columns.length - 1);
    let x = left;
    const columns = {};
    for (const column of m.columns) {
      columns[column.name] = {x, width: column.share * space};
      x += column.share * space + gap;
    }
    columns.head = {x: left, width: width - left};
    context.font = '11.5px system-ui, "DejaVu Sans", sans-serif';
    context.fillStyle = soft;
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    for (const column of m.columns) {
      const names = {qk: ['query + key', 'q + k'], vo: ['value + output', 'v + o'], gate_up: ['gate + up', 'gate'], down: ['down', 'down'], experts: ['experts', 'experts']}[column.name];
      context.fillText(context.measureText(names[0]).width <= columns[column.name].width ? names[0] : names[1], columns[column.name].x, 12);
    }
    const every = [1, 2, 4, 5, 10, 20].find((n) => n * row >= 13) || 20;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (let layer = 0; layer <= m.layers; ++layer) {
      const y = top + layer * row + (layer === m.layers ? 4 : 0) + row / 2;
      const walks = m.layer === layer;
      context.fillStyle = walks ? colours.s : soft;
      if (layer === m.layers) context.fillText('head', left - 14, y);
      else if (layer % every === 0 && layer + every / 2 < m.layers) context.fillText(String(layer), left - 14, y);
      if (!walks) continue;
      context.beginPath();
      context.moveTo(left - 10, y - 4);
      context.lineTo(left - 4, y);
      context.lineTo(left - 10, y + 4);
      context.fill();
    }
    m.at = m.cells.map((cell) => {
      const column = columns[cell.module], high = Math.max(3, (row - 2) * Math.max(0.25, Math.min(1, cell.bits / m.maxBits)));
      const y = top + cell.layer * row + (cell.module === 'head' ? 4 : 0) + (row - high) / 2;
      const step = column.width / cell.units, apart = step >= 5 ? 1 : step >= 3 ? 0.5 : 0;
      for (let i = 0; i < cell.units; ++i) {
        const unit = cell.first + i, state = m.units[unit] || '.';
        context.fillStyle = colours[state];
        context.fillRect(column.x + i * step, y, step - apart, high);
        const age = state === '.' && m.passedAt[unit] ? (now - m.passedAt[unit]) / m.kTrailMs : 1;
        if (age >= 1) continue;
        context.globalAlpha = 1 - age;
        context.fillStyle = passed;
        context.fillRect(column.x + i * step, y, step - apart, high);
        context.globalAlpha = 1;
      }
      return {x: column.x, y: top + cell.layer * row + (cell.module === 'head' ? 4 : 0), width: column.width, height: row};
    });
    if (m.chosen === null) return;
    const box = m.at[m.chosen];
    context.strokeStyle = Charts.colour('ink');
    context.lineWidth = 1.2;
    context.strokeRect(box.x - 1.5, box.y - .5, box.width + 3, box.height + 1);
  },

  // Below the map: what it is, or what the chosen cell is.
  tell() {
    const m = WeightMap, f = m.facts;
    if (m.chosen === null) {
      const parts = [`${m.layers} layers`, Figures.words(Figures.size(f.weights_bytes)) + ' of weights'];
      if (f.unit_bytes > 0) parts.push(`${Figures.number(m.units.length)} units, Extents of ${Figures.words(Figures.size(f.unit_bytes))}`);
      const bits = m.cells.map((c) => c.bits), low = Math.min(...bits), high = Math.max(...bits);
      parts.push(high - low < 0.01 ? `${Figures.short(high)} bits each` : `${Figures.short(low)} to ${Figures.short(high)} bits a weight, as bars are high`);
      return say('map-readout', parts.join(' · '));
    }
    const cell = m.cells[m.chosen], found = m.counts(m.units.slice(cell.first, cell.first + cell.units));
    const where = m.kStates.filter(([letter]) => letter in found).map(([letter]) => `${found[letter]} ${m.kWords[letter]}`).join(', ');
    const name = cell.module === 'head' ? 'Head' : `Layer ${cell.layer}, ${m.kNames[cell.module]}`;
    say('map-readout', `${name}: ${where} · ${Figures.count(cell.weights)} weights of ${Figures.short(cell.bits)} bits`);
  },

  choose(index) {
    if (WeightMap.chosen === index || WeightMap.cells.length === 0) return;
    WeightMap.chosen = index;
    WeightMap.draw();
    WeightMap.tell();
  },

  listen() {
    const canvas = byId('map'), m = WeightMap;
    const under = (event) => {
      const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      const index = m.at.findIndex((c) => x >= c.x && x < c.x + c.width && y >= c.y && y < c.y + c.height);
      m.choose(index < 0 ? null : index);
    };
    canvas.addEventListener('pointermove', under);
    canvas.addEventListener('pointerdown', under);
    canvas.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') m.choose(null); });
    canvas.addEventListener('blur', () => m.choose(null));
    canvas.addEventListener('keydown', (event) => {
      const steps = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: m.columns.length, ArrowUp: -m.columns.length};
      if (event.key === 'Escape') return m.choose(null);
      if (!(event.key in steps)) return;
      event.preventDefault();
      m.choose(m.chosen === null ? 0 : Math.max(0, Math.min(m.cells.length - 1, m.chosen + steps[event.key])));
    });
  },
};
