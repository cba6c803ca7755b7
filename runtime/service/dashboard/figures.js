'use strict';
// Numbers as people read them, and the way to the server. What other scripts use is named here.

const byId = (id) => document.getElementById(id);
const say = (id, text) => { const to = byId(id); if (to.textContent !== text) to.textContent = text; };

const Figures = {
  number(value, digits = 0) { return value.toLocaleString('en-GB', {minimumFractionDigits: digits, maximumFractionDigits: digits}); },
  // Three figures that count.
  short(value) { return Figures.number(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2); },
  // Memory, in powers of 1024: ['1.21', 'GiB'].
  size(bytes) {
    const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
    let u = 0;
    while (bytes >= 1000 && u + 1 < units.length) { bytes /= 1024; ++u; }
    return [u === 0 ? Figures.number(bytes) : Figures.short(bytes), units[u]];
  },
  // Reads, as devices are sold: ['1.42', 'GB/s'].
  rate(perSecond) { return perSecond >= 1e9 ? [Figures.short(perSecond / 1e9), 'GB/s'] : [Figures.short(perSecond / 1e6), 'MB/s']; },
  count(value) { return value >= 1e9 ? Figures.short(value / 1e9) + ' billion' : value >= 1e6 ? Figures.short(value / 1e6) + ' million' : Figures.number(value); },
  percent(share) { return share > 0 && share < 0.095 ? Figures.number(100 * share, 1) : Figures.number(100 * share); },
  words([value, unit]) { return value + ' ' + unit; },
};

// The key is the user's: in this tab alone, gone with it.
const Server = {
  kKey: 'weir-api-key',
  key() { try { return sessionStorage.getItem(Server.kKey) || ''; } catch { return Server.forgotten || ''; } },
  setKey(key) { try { sessionStorage.setItem(Server.kKey, key); } catch { Server.forgotten = key; } },
  fetch(path, options = {}) {
    const headers = new Headers(options.headers);
    if (Server.key() !== '') headers.set('Authorization', 'Bearer ' + Server.key());
    return fetch(path, {...options, headers, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  },
};
