// Charts in SVG, drawn for the width that they get. Each has a text that says the same.

import { h, name, count, percent, tick, stamp } from "./dom.js";
import { W } from "./words.js";

const HUES = 8;

/** Model → class of its colour: by its place among those of the configuration, others by their name, in every view and after a reload. */
const places = new Map();
export function setColours(models) {
  places.clear();
  Object.keys(models).sort().forEach((model, i) => { places.set(model, i).set(models[model], i); });
}
export function hue(model) {
  if (!model) return "c-none";
  const place = places.get(model) ?? [...model].reduce((sum, letter) => (31 * sum + letter.codePointAt(0)) % 9973, 7);
  return "c" + (place % HUES);
}

/** Draws again when the width changes. */
function fluid(holder, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      holder.replaceChildren(draw(width));
    }
  }).observe(holder);
  return holder;
}

function nice(top) {
  if (!(top > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * size).find((n) => n >= top - 1e-12);
}

/**
 * Lines over time, with a band of uncertainty and a reading under the pointer.
 * from, step, points: of the time axis. lines: [{name, values: Map point → number, class, area}].
 * band: Map point → [low, high]. show: number → text. top: fixed upper end.
 */
export function overTime({ label, from, step, points, lines, band, show, top, height = 116 }) {
  const holder = h("div", { class: "chart" });
  const all = lines.flatMap((line) => [...line.values.values()]).filter(Number.isFinite);
  const highest = top ?? nice(Math.max(0, ...all, ...(band ? [...band.values()].map((b) => b[1]) : [])));
  const last = lines[0] && [...lines[0].values.entries()].pop();
  const text = all.length
    ? W.charts.points(label, all.length, stamp(from, step), show(last[1]), show(Math.min(...all)), show(Math.max(...all)))
    : W.charts.none(label);
  return fluid(holder, (width) => {
    const left = 52, right = 8, upper = 8, lower = 20;
    const x = (point) => left + ((point + 0.5) / points) * (width - left - right);
    const y = (value) => upper + (1 - Math.min(value, highest) / highest) * (height - upper - lower);
    const kids = [];
    for (const share of [0, 0.5, 1])
      kids.push(h("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(share * highest), y2: y(share * highest) }),
        h("svg:text", { class: "axis", x: left - 6, y: y(share * highest) + 4, "text-anchor": "end" }, show(share * highest)));
    const marks = width < 330 ? 2 : width < 560 ? 3 : 5;
    for (let i = 0; i <= marks; i++) {
      const point = (i / marks) * points;
      kids.push(h("svg:text", { class: "axis", x: left + (point / points) * (width - left - right), y: height - 4,
        "text-anchor": i === 0 ? "start" : i === marks ? "end" : "middle" }, tick(from + point * step, points * step)));
    }
    if (band) for (const run of runs(band)) {
      const up = run.map(([p, [low]]) => `${x(p)},${y(low)}`), down = run.map(([p, [, high]]) => `${x(p)},${y(high)}`).reverse();
      if (run.length > 1) kids.push(h("svg:polygon", { class: "band", points: [...up, ...down].join(" ") }));
      else kids.push(h("svg:line", { class: "band-bar", x1: x(run[0][0]), x2: x(run[0][0]), y1: y(run[0][1][0]), y2: y(run[0][1][1]) }));
    }
    for (const line of lines) for (const run of runs(line.values)) {
      const path = run.map(([p, v]) => `${x(p)},${y(v)}`);
      if (line.area && run.length > 1)
        kids.push(h("svg:polygon", { class: "area " + line.class, points: [`${x(run[0][0])},${y(0)}`, ...path, `${x(run.at(-1)[0])},${y(0)}`].join(" ") }));
      if (run.length > 1) kids.push(h("svg:polyline", { class: "line " + line.class, points: path.join(" ") }));
      else kids.push(h("svg:circle", { class: "dot " + line.class, cx: x(run[0][0]), cy: y(run[0][1]), r: 2.5 }));
    }
    const cursor = h("svg:line", { class: "cursor", y1: upper, y2: height - lower, visibility: "hidden" });
    const reading = h("div", { class: "reading", hidden: true });
    const svg = h("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text,
      onpointermove: (event) => {
        const point = Math.floor(((event.offsetX - left) / (width - left - right)) * points);
        if (point < 0 || point >= points) return hide();
        cursor.setAttribute("x1", x(point));
        cursor.setAttribute("x2", x(point));
        cursor.setAttribute("visibility", "visible");
        const values = lines.map((line) => (line.values.has(point) ? `${line.name} ${show(line.values.get(point))}` : null)).filter(Boolean);
        reading.textContent = `${stamp(from + point * step, step)}: ${values.join(", ") || W.charts.nothing}`;
        reading.hidden = false;
      }, onpointerleave: () => hide() }, kids, cursor);
    function hide() {
      cursor.setAttribute("visibility", "hidden");
      reading.hidden = true;
    }
    return h("div", { class: "plot" }, svg, reading);
  });
}

/** Neighbouring points in a row; single gaps are bridged where the data is sparse. */
function runs(values) {
  const found = [];
  let before = null;
  for (const entry of [...values.entries()].filter(([, v]) => v !== null && (Array.isArray(v) ? v[0] !== null : Number.isFinite(v))).sort((a, b) => a[0] - b[0])) {
    if (before !== null && entry[0] - before <= 3) found.at(-1).push(entry);
    else found.push([entry]);
    before = entry[0];
  }
  return found;
}

/** Traffic from the left names to the right ones. flows: [{from, to, n}]; names are texts, null for other. */
export function sankey({ label, flows, left, right, leftName, rightName, onpick }) {
  const total = flows.reduce((sum, flow) => sum + flow.n, 0);
  const text = `${label}: ` + flows.slice(0, 12).map((f) => W.charts.flow(leftName(f.from), rightName(f.to), percent(f.n / total))).join("; ");
  const holder = h("div", { class: "chart sankey" });
  return fluid(holder, (width) => {
    const rows = Math.max(left.length, right.length), gap = 8, bar = 10;
    const height = Math.max(170, rows * 46);
    const room = width < 520 ? 96 : 190;
    const line = width < 520 ? 32 : 22;
    const sums = (names, key) => names.map((n) => flows.filter((f) => f[key] === n).reduce((s, f) => s + f.n, 0));
    /** Pixels of a request, so that each name has the height of a line at least. */
    const scaleOf = (found) => {
      const space = height - gap * (found.length - 1);
      let scale = space / total;
      for (let i = 0; i < found.length; i++) {
        const big = found.filter((n) => n * scale >= line);
        if (big.length) scale = Math.max(0, space - line * (found.length - big.length)) / big.reduce((s, n) => s + n, 0);
      }
      return scale;
    };
    const scale = Math.min(scaleOf(sums(left, "from")), scaleOf(sums(right, "to")));
    const side = (names, key) => {
      const found = sums(names, key), slots = found.map((n) => Math.max(line, n * scale));
      const spare = height - slots.reduce((s, n) => s + n, 0), between = Math.min(40, spare / Math.max(1, names.length - 1));
      let top = (spare - between * (names.length - 1)) / 2;
      const place = new Map();
      names.forEach((n, i) => {
        const size = Math.max(1.5, found[i] * scale);
        place.set(n, { top: top + (slots[i] - size) / 2, size, used: 0, sum: found[i], scale });
        top += slots[i] + between;
      });
      return place;
    };
    const from = side(left, "from"), to = side(right, "to");
    const x0 = room, x1 = width - room, kids = [];
    const ordered = [...flows].sort((a, b) => left.indexOf(a.from) - left.indexOf(b.from) || right.indexOf(a.to) - right.indexOf(b.to));
    for (const flow of ordered) {
      const a = from.get(flow.from), b = to.get(flow.to);
      const ya = a.top + a.used, yb = b.top + b.used, wa = flow.n * a.scale, wb = flow.n * b.scale;
      a.used += wa;
      b.used += wb;
      const middle = (x0 + x1) / 2;
      const path = `M${x0 + bar},${ya}C${middle},${ya} ${middle},${yb} ${x1 - bar},${yb}V${yb + wb}C${middle},${yb + wb} ${middle},${ya + wa} ${x0 + bar},${ya + wa}Z`;
      kids.push(h("svg:path", { class: "ribbon " + hue(flow.to), d: path },
        h("svg:title", null, W.charts.ribbon(leftName(flow.from), rightName(flow.to), count(flow.n), percent(flow.n / a.sum)))));
    }
    const labels = [];
    for (const [places, atLeft] of [[from, true], [to, false]]) {
      [...places].forEach(([n, place]) => {
        kids.push(h("svg:rect", { class: atLeft ? "node" : "node " + hue(n), x: atLeft ? x0 : x1 - bar, y: place.top, width: bar, height: place.size, rx: 2 }));
        const edge = atLeft ? { right: `${width - x0 + 4}px` } : { left: `${x1 + 4}px` };
        labels.push(h("button", { type: "button", class: "flow-name", "data-key": (atLeft ? "l-" : "r-") + n, disabled: n === null,
          css: { top: `${place.top + place.size / 2}px`, "max-width": `${room - 6}px`, "text-align": atLeft ? "right" : "left", ...edge }, onclick: () => onpick(atLeft ? "role" : "model", n) },
          name((atLeft ? leftName : rightName)(n), 40), h("span", { class: "quiet" }, ` ${percent(place.sum / total)}`)));
      });
    }
    return h("div", { class: "plot", css: { height: `${height}px` } },
      h("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text }, kids), labels);
  });
}

/** An estimate with its interval on a line through zero. */
export function whisker({ low, mid, high, most, label }) {
  const x = (value) => 100 + (Math.max(-most, Math.min(most, value)) / most) * 96;
  const sign = low > 0 ? "good" : high < 0 ? "bad" : "open";
  return h("svg:svg", { class: "whisker " + sign, viewBox: "0 0 200 20", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    h("svg:line", { class: "grid", x1: 100, x2: 100, y1: 1, y2: 19 }),
    h("svg:line", { class: "range", x1: x(low), x2: x(high), y1: 10, y2: 10 }),
    h("svg:rect", { class: "mid", x: x(mid) - 2, y: 4, width: 4, height: 12, rx: 1 }));
}

/** A share as a bar, with its number. */
export const bar = (share, text, cls = "") =>
  h("div", { class: "bar " + cls }, h("span", { class: "fill", css: { width: `${Math.max(0.5, 100 * Math.min(1, share))}%` } }), h("span", { class: "text", css: share < 0.5 ? { left: `calc(${100 * Math.max(0, share)}% + .5rem)` } : {} }, text));

/** An estimate between 0 and 1 with its interval, and a tick for comparison. */
export const span = ({ low, mid, high, mark, label, cls = "" }) => {
  const at = (value) => `${100 * Math.max(0, Math.min(1, value))}%`;
  const width = Math.max(0.5, 100 * (Math.min(1, high) - Math.max(0, low)));
  return h("div", { class: "track " + cls, role: "img", "aria-label": label }, h("span", { class: "within", css: { left: at(low), width: `${width}%` } }), h("span", { class: "tick", css: { left: at(mark) } }), h("span", { class: "point", css: { left: at(mid) } }));
};

/** Predicted against observed means, with intervals and the diagonal that both share when predictions are right. */
export function calibration({ label, points, show }) {
  const text = `${label}: ` + points.map((p) => W.charts.right(show(p.predicted), show(p.mean))).join("; ");
  return fluid(h("div", { class: "chart" }), (width) => {
    const left = 40, lower = 34, height = Math.min(280, width), side = height - lower - 8;
    const x = (v) => left + Math.max(0, Math.min(1, v)) * Math.min(side * 1.6, width - left - 12), y = (v) => 8 + (1 - v) * side;
    return h("div", { class: "plot" }, h("svg:svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
      [0, 0.5, 1].map((v) => [h("svg:line", { class: "grid", x1: x(0), x2: x(1), y1: y(v), y2: y(v) }), h("svg:text", { class: "axis", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, show(v)),
        h("svg:text", { class: "axis", x: x(v), y: height - 18, "text-anchor": "middle" }, show(v))]),
      h("svg:text", { class: "axis", x: x(0.5), y: height - 3, "text-anchor": "middle" }, W.charts.axes),
      h("svg:line", { class: "cursor diagonal", x1: x(0), x2: x(1), y1: y(0), y2: y(1) }),
      points.map((p) => [h("svg:line", { class: "line k2", x1: x(p.predicted), x2: x(p.predicted), y1: y(p.low), y2: y(p.high) }),
        h("svg:circle", { class: "dot k2", cx: x(p.predicted), cy: y(p.mean), r: 4 }, h("svg:title", null, W.charts.right(show(p.predicted), show(p.mean)), W.charts.dot(show(p.low), show(p.high), count(p.ratings), count(p.people))))])));
  });
}
