'use strict';
// Small charts on canvases, sharp on every screen, in the colours of the theme.

const Charts = {
  colour(name) { return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim(); },

  // A cleared context whose unit is a CSS pixel; nothing where the canvas is not shown.
  begin(canvas, height = 0) {
    const scale = window.devicePixelRatio || 1;
    if (height > 0 && canvas.style.height !== height + 'px') canvas.style.height = height + 'px';
    const width = canvas.clientWidth;
    height = canvas.clientHeight;
    if (width === 0 || height === 0) return null;
    const wide = Math.round(width * scale), high = Math.round(height * scale);
    if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
    const context = canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return {context, width, height};
  },

  // values: the last of at most `room` seconds, the newest last. limit: a line beside them, of the same length; or nothing.
  seconds(canvas, values, room, limit = [], least = 0) {
    const at = Charts.begin(canvas);
    if (at === null) return;
    const {context, width, height} = at;
    const top = Math.max(least, ...values, ...limit.filter(Number.isFinite)) * 1.08 || 1;
    const x = (i, n) => width - (n - 1 - i) * width / (room - 1), y = (value) => height - 1.5 - value / top * (height - 4);
    context.strokeStyle = Charts.colour('line');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, height - .5);
    context.lineTo(width, height - .5);
    context.stroke();
    if (values.length === 0) return;
    context.beginPath();
    values.forEach((value, i) => context.lineTo(x(i, values.length), y(value)));
    context.strokeStyle = Charts.colour('accent');
    context.lineWidth = 1.6;
    context.lineJoin = 'round';
    context.stroke();
    context.lineTo(x(values.length - 1, values.length), height);
    context.lineTo(x(0, values.length), height);
    context.fillStyle = Charts.colour('area');
    context.fill();
    context.beginPath();
    let drawn = false;
    limit.forEach((value, i) => {
      if (!Number.isFinite(value)) { drawn = false; return; }
      if (drawn) context.lineTo(x(i, limit.length), y(value));
      else context.moveTo(x(i, limit.length), y(value));
      drawn = true;
    });
    context.strokeStyle = Charts.colour('limit');
    context.lineWidth = 1.4;
    context.setLineDash([4, 3]);
    context.stroke();
    context.setLineDash([]);
  },

  // A bar each, the newest at the right, and their mean.
  bars(canvas, values, least) {
    const at = Charts.begin(canvas);
    if (at === null) return;
    const {context, width, height} = at;
    const step = 5, shown = values.slice(-Math.floor(width / step));
    const top = Math.max(least, ...shown), y = (value) => value / top * (height - 3);
    context.fillStyle = Charts.colour('accent');
    shown.forEach((value, i) => {
      const high = Math.max(1, y(value));
      context.fillRect(width - (shown.length - i) * step, height - high, step - 1.5, high);
    });
    context.fillStyle = Charts.colour('line');
    context.fillRect(0, height - 1, width, 1);
  },

  // How full something is.
  level(canvas, share) {
    const at = Charts.begin(canvas);
    if (at === null) return;
    const {context, width, height} = at, high = 14, y = (height - high) / 2;
    const bar = (w, colour) => {
      context.fillStyle = Charts.colour(colour);
      context.beginPath();
      context.roundRect(0, y, w, high, 5);
      context.fill();
    };
    bar(width, 'absent');
    if (share > 0) bar(Math.max(10, Math.min(1, share) * width), share > 1 ? 'bad' : 'resident');
  },
};
