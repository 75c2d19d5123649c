// This module draws curves as SVG. Values whose names end alike, such as main/loss and
// validation/main/loss, share a figure.

const SVG = "http://www.w3.org/2000/svg";
const COLORS = 6;
const MARGIN = { left: 52, right: 10, top: 10, bottom: 22 };

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

export function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function short(value) {
  if (value === null || value === undefined) return "NaN";
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(size < 1 ? 3 : 4)));
}

export function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (n) => String(n).padStart(2, "0");
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

const FEWEST_TICKS = 3;
const DECADES = 2; // an automatic scale is logarithmic if a loss spans as many
const LOWER_IS_BETTER = /loss|error|perplexity|^(mse|mae|rmse|nll)$/i;
const HIGHER_IS_BETTER = /accuracy|precision|recall|bleu|auc|score|^(f1|r2|iou|dice)$/i;
const MARKS = { lost: "lost", restart: "restart", back: "restart" };

function ticks(low, high, count) {
  let found;
  for (const factor of [1, 1.4, 2, 2.8]) {
    found = ticksAbout(low, high, factor * count);
    if (found.length >= FEWEST_TICKS) break;
  }
  return found;
}

function ticksAbout(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

class Scale {
  constructor(values, from, to, isLog) {
    this.isLog = isLog;
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) {
      if (value === null || (isLog && value <= 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (low > high) [low, high] = isLog ? [0.1, 1] : [0, 1];
    if (low === high) {
      const around = Math.abs(low) / 10 || 0.5;
      [low, high] = isLog ? [low / 2, low * 2] : [low - around, high + around];
    }
    [this.low, this.high] = isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
    [this.from, this.to] = [from, to];
  }
  place(value) {
    if (value === null || (this.isLog && value <= 0)) return null;
    const at = this.isLog ? Math.log10(value) : value;
    return this.from + ((at - this.low) / (this.high - this.low)) * (this.to - this.from);
  }
  ticks(count) {
    const values = ticks(this.low, this.high, count);
    if (!this.isLog) return values;
    const powers = values.filter(Number.isInteger).map((power) => 10 ** power);
    if (powers.length > 1 && powers.length < 2 * count) return powers;
    if (powers.length > 1) return powers.filter((_, i) => !(i % Math.ceil(powers.length / count)));
    return ticks(10 ** this.low, 10 ** this.high, count).filter((value) => value > 0);
  }
}

export class Figure {
  constructor(name) {
    this.name = name;
    this.curves = new Map(); // key → {log: points, live: points, extremes: two points of log}
    this.marks = []; // events: {kind, at, text}
    this.element = make("figure", "card");
    this.caption = make("figcaption");
    this.title = make("b", "", name);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `curve of ${name}`);
    this.caption.append(this.title);
    this.element.append(this.caption, this.svg);
    this.pointer = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  add(key, kind, points, whole, extremes) {
    if (!this.curves.has(key)) this.curves.set(key, { log: [], live: [], extremes: [] });
    const curve = this.curves.get(key);
    if (kind === "log") curve.extremes = extremes;
    curve[kind] = whole ? points : curve[kind].concat(points);
  }

  point(x) {
    this.pointer = x;
    this.draw();
  }

  show(settings) {
    this.settings = settings;
    this.draw();
  }

  // This method returns the point of a curve with the best logged value; undefined if the name does
  // not tell whether lower or higher values are better.
  best(key) {
    const [low, high] = this.curves.get(key).extremes;
    if (LOWER_IS_BETTER.test(this.name)) return low;
    return HIGHER_IS_BETTER.test(this.name) ? high : undefined;
  }

  // This property tells whether all values are the same, as for a learning rate without a schedule.
  get isConstant() {
    const values = [...this.curves.values()].flatMap((curve) => [...curve.log, ...curve.live]).map((point) => point[3]);
    return values.every((value) => value === values[0]);
  }

  isLogScale(points) {
    if (this.settings.scale !== "automatic") return this.settings.scale === "log";
    const values = points.map((point) => point[3]).filter((value) => value !== null);
    const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]);
    return LOWER_IS_BETTER.test(this.name) && low > 0 && high >= low * 10 ** DECADES;
  }

  draw() {
    const [width, height] = [this.svg.clientWidth, this.svg.clientHeight];
    if (!width || !this.settings) return;
    const { axis } = this.settings;
    const everything = [...this.curves.values()].flatMap((curve) => [...curve.log, ...curve.live]).filter((point) => point[axis] !== null);
    const logged = [...this.curves.values()].flatMap((curve) => curve.log);
    const isLog = this.isLogScale(logged.length > 1 ? logged : everything);
    const x = new Scale(everything.map((point) => point[axis]), MARGIN.left, width - MARGIN.right, false);
    const y = new Scale(everything.map((point) => point[3]), height - MARGIN.bottom, MARGIN.top, isLog);
    this.svg.replaceChildren();
    this.drawAxes(x, y, width, height);
    this.drawMarks(x, axis, height);
    const at = this.drawPointer(x, everything, axis, height);
    this.caption.replaceChildren(this.title);
    [...this.curves].forEach(([key, curve], index) => {
      const color = `c${index % COLORS}`;
      this.drawCurve(curve.live, x, y, axis, `live ${color} ${curve.log.length ? "" : "alone"}`);
      this.drawCurve(curve.log, x, y, axis, color);
      const shown = curve.log.length ? curve.log : curve.live;
      const point = at === null ? shown.at(-1) : nearest(shown, axis, at);
      this.drawPoint(point, x, y, axis, color, at !== null || shown.length === 1);
      if (curve.log.length > 1) this.drawPoint(this.best(key), x, y, axis, `best ${color}`, true);
      this.drawKey(key, point, color);
    });
    const name = this.curves.size > 1 ? this.name : this.curves.keys().next().value;
    const scale = isLog ? `${name} (log scale)` : name;
    this.title.textContent = at === null ? scale : `${name} · ${this.nameOf(at)}`;
  }

  nameOf(at) {
    const { axis } = this.settings;
    return axis === 2 ? clock(at) : axis === 1 ? `epoch ${short(at)}` : `iteration ${at}`;
  }

  drawAxes(x, y, width, height) {
    for (const value of y.ticks(4)) {
      const at = y.place(value);
      draw(this.svg, "line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at });
      draw(this.svg, "text", { x: MARGIN.left - 7, y: at + 4, "text-anchor": "end" }, short(value));
    }
    const label = this.settings.axis === 2 ? clock : short;
    for (const value of x.ticks(Math.max(3, width / 90))) {
      const at = x.place(value);
      const anchor = at > width - 30 ? "end" : "middle";
      draw(this.svg, "text", { x: at, y: height - 5, "text-anchor": anchor }, label(value));
    }
  }

  drawMarks(x, axis, height) {
    for (const { kind, at, text } of this.marks) {
      const left = at[axis] === null ? null : x.place(at[axis]);
      if (left === null || left < x.from - 1 || left > x.to + 1) continue;
      const mark = draw(this.svg, "line", { class: `mark ${MARKS[kind] ?? ""}`, x1: left, x2: left, y1: MARGIN.top, y2: height - MARGIN.bottom });
      draw(mark, "title", {}, text);
    }
  }

  drawPointer(x, points, axis, height) {
    if (this.pointer === null || !points.length) return null;
    const wanted = x.low + ((this.pointer - x.from) / (x.to - x.from)) * (x.high - x.low);
    const at = nearest(points, axis, wanted)[axis];
    draw(this.svg, "line", { class: "cross", x1: x.place(at), x2: x.place(at), y1: MARGIN.top, y2: height - MARGIN.bottom });
    return at;
  }

  drawCurve(points, x, y, axis, className) {
    let path = "";
    let isDown = false;
    for (const point of points) {
      const [left, top] = [point[axis] === null ? null : x.place(point[axis]), y.place(point[3])];
      if (left === null || top === null) {
        isDown = false;
        continue;
      }
      path += `${isDown ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`;
      isDown = true;
    }
    if (path) draw(this.svg, "path", { d: path, class: className });
  }

  drawPoint(point, x, y, axis, color, isShown) {
    const top = point && y.place(point[3]);
    if (isShown && top !== null && top !== undefined && point[axis] !== null) {
      const circle = draw(this.svg, "circle", { cx: x.place(point[axis]), cy: top, r: 4, class: color });
      if (color.startsWith("best")) draw(circle, "title", {}, `best: ${short(point[3])} at ${this.nameOf(point[axis])}`);
    }
  }

  drawKey(key, point, color) {
    const element = make("span", `key ${color}`);
    const name = this.curves.size > 1 ? key.split("/").slice(0, -1).join("/") || key : "";
    element.append(make("i"), name, make("span", "", short(point ? point[3] : null)));
    element.title = key;
    this.caption.append(element);
  }
}

function nearest(points, axis, at) {
  let best = points[0];
  for (const point of points) {
    if (point[axis] !== null && Math.abs(point[axis] - at) <= Math.abs(best[axis] - at)) best = point;
  }
  return best;
}
