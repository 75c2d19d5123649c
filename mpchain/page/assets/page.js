// This module asks the server every second what is new, and shows the answer. All that the run says
// is shown as text, never as HTML.

import { Figure, clock, make, short } from "./curves.js";

const PERIOD = 1000; // milliseconds between two questions
const MOST_LINES = 500;
const MOST_POINTS = 4000; // longer curves are replaced by the server's thinner ones
const SLOWER = 1.2;
const MOST_IN_SIGHT = 12; // if there are more ranks, failed ranks come first
const NAMES = { runs: "running", starts: "starting", lost: "lost", gone: "no connection" };

const NOT_FOR_STEADY_VALUES = "learning rate"; // the figure is shown only if the value changes

const get = (id) => document.getElementById(id);
const figures = new Map();
const tab = Math.random().toString(36).slice(2); // tells the server which browsers have seen the end
let number = 0;
let isOver = false;

function settings() {
  return { axis: Number(get("axis").value), scale: get("scale").value };
}

function bytes(value) {
  if (value === undefined) return "";
  const gigabytes = value / 2 ** 30;
  return gigabytes >= 1 ? `${gigabytes.toFixed(gigabytes < 10 ? 2 : 1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
}

function showState(state, text) {
  get("state").textContent = NAMES[state] ?? state;
  get("state").className = `pill ${state}`;
  get("text").textContent = text;
  get("text").className = state;
  get("text").hidden = !text;
}

function showJob(job, ranks) {
  get("title").textContent = job.title || "mpchain";
  get("command").textContent = job.command ?? "";
  get("command").title = job.command ?? "";
  const restart = job.start > 1 && job.state === "runs" ? `This is restart ${job.start - 1}.` : "";
  showState(job.state, job.text || restart);
  get("stop").hidden = !job.control || !["runs", "stopping"].includes(job.state);
  get("stop").disabled = !job.can_stop;
  get("stop").textContent = job.state === "stopping" ? "Stopping…" : "Stop after this iteration";
  const percent = 100 * (job.done ?? 0);
  get("bar").hidden = !job.done;
  get("bar").setAttribute("aria-valuenow", percent.toFixed(0));
  get("done").style.width = `${percent}%`;
  const steps = ranks.filter((rank) => rank.step !== undefined);
  const first = steps[0] ?? {};
  const isMean = !["runs", "stopping"].includes(job.state); // the last seconds say little about a run that is over
  const [samples, rate] = isMean ? [job.mean_samples, first.mean_rate] : [job.samples, first.rate];
  const three = (value) => (value === undefined ? undefined : short(Number(value.toPrecision(3))));
  const mean = isMean ? "mean " : "";
  const numbers = [
    ["iteration", first.step],
    ["epoch", first.epoch === undefined ? undefined : first.epoch.toFixed(2)],
    ["done", job.done ? `${percent.toFixed(percent < 10 ? 1 : 0)} %` : undefined],
    [`${mean}samples/s`, three(samples)],
    [`${mean}iterations/s`, three(rate)],
    ["learning rate", three(figures.get(NOT_FOR_STEADY_VALUES)?.curves.get(NOT_FOR_STEADY_VALUES)?.live.at(-1)?.[3] ?? undefined)],
    bestValue(),
    ["elapsed", job.elapsed === undefined ? undefined : clock(job.elapsed)],
    ["left", job.left === undefined || job.state !== "runs" ? undefined : clock(job.left)],
  ];
  const shown = numbers.filter(([, value]) => value !== undefined);
  get("numbers").replaceChildren(
    ...shown.map(([name, value]) => {
      const box = make("div");
      box.append(make("dt", "", name), make("dd", "", String(value)));
      return box;
    }),
  );
  const mark = { runs: job.done ? `${percent.toFixed(0)} % ` : "", failed: "✗ ", lost: "✗ ", finished: "✓ " }[job.state] ?? "";
  document.title = `${mark}${job.title || "mpchain"}`;
}

// This function returns the best validation loss or accuracy so far, with its name.
function bestValue() {
  for (const figure of figures.values()) {
    for (const key of figure.curves.keys()) {
      const point = key.startsWith("validation") ? figure.best(key) : undefined;
      if (point) return [`best ${key.replace("/main/", " ")}`, short(point[3])];
    }
  }
  return ["best", undefined];
}

function showMarks(marks) {
  get("marks").hidden = !marks.length;
  get("marks").replaceChildren(
    ...marks.map(({ kind, at, text }) => make("li", kind, at[2] === null ? text : `${clock(at[2])}, iteration ${at[0]}: ${text}`)),
  );
}

function showAbout(settings, folder, files) {
  get("about").hidden = !folder;
  get("settings").replaceChildren(
    ...Object.entries(settings).map(([name, value]) => {
      const box = make("div");
      box.append(make("dt", "", name), make("dd", "", value));
      return box;
    }),
  );
  get("folder").textContent = folder;
  get("files").replaceChildren(
    ...files.map((name) => {
      const element = make(isOver ? "span" : "a", "", name); // when the run is over, no one serves them
      if (!isOver) Object.assign(element, { href: `files/${encodeURIComponent(name)}`, target: "_blank", rel: "noopener" });
      return element;
    }),
  );
}

function rowOf(rank, slowest) {
  const row = make("tr", rank.state + (rank === slowest ? " slowest" : ""));
  row.dataset.rank = rank.number;
  const cell = (className, ...content) => {
    const element = make("td", className);
    element.append(...content);
    row.append(element);
    return element;
  };
  const name = cell("rank", String(rank.number));
  if (rank.host) name.append(make("small", "", rank.host));
  cell("", make("span", `pill ${rank.state}`, NAMES[rank.state] ?? rank.state));
  cell("n", rank.step === undefined ? "" : String(rank.step)).dataset.name = "step";
  const share = cell("share");
  if (rank.work !== undefined && rank.wait !== undefined) {
    const meter = make("span", "meter");
    const parts = [rank.work, rank.wait].map((part) => {
      const element = make("i");
      element.style.width = `${100 * part}%`;
      return element;
    });
    meter.append(...parts);
    const text = `${(100 * rank.work).toFixed(0)} / ${(100 * rank.wait).toFixed(0)} %`;
    share.append(meter, make("b", "", rank === slowest ? `${text} slowest` : text));
  }
  cell("n", bytes(rank.memory)).dataset.name = "memory";
  cell("n gpu", bytes(rank.gpu)).dataset.name = "GPU";
  const line = rank.text || rank.line || "";
  cell("line", line).title = line;
  return row;
}

// This function returns the rank that works so much longer than the others that the log names it;
// null if there is none.
function slowestOf(ranks) {
  const work = ranks.map((rank) => rank.work);
  const most = Math.max(...work);
  const others = (work.reduce((a, b) => a + b, 0) - most) / (ranks.length - 1);
  return most > SLOWER * others ? ranks[work.indexOf(most)] : null;
}

function showRanks(ranks) {
  const slowest = slowestOf(ranks.filter((rank) => rank.work !== undefined && rank.state === "runs"));
  const table = get("ranks");
  const failed = ranks.length > MOST_IN_SIGHT ? ranks.filter((rank) => rank.state === "failed") : [];
  const order = [...failed, ...ranks.filter((rank) => !failed.includes(rank))];
  table.tBodies[0].replaceChildren(...order.map((rank) => rowOf(rank, slowest)));
  table.classList.toggle("no-gpu", !ranks.some((rank) => rank.gpu !== undefined));
  table.classList.toggle("no-share", !ranks.some((rank) => rank.wait !== undefined));
  const counts = new Map();
  for (const { state } of ranks) counts.set(state, (counts.get(state) ?? 0) + 1);
  get("counts").textContent = [...counts].map(([state, n]) => `${n} ${NAMES[state] ?? state}`).join(", ");
}

function showCurves(curves, marks) {
  for (const { key, kind, points, whole, extremes } of curves) {
    const name = key === "samples/s" ? key : key.split("/").at(-1);
    if (!figures.has(name)) {
      if (!figures.size) get("curves").replaceChildren();
      figures.set(name, new Figure(name));
      const last = figures.get("samples/s")?.element ?? null;
      get("curves").insertBefore(figures.get(name).element, name === "samples/s" ? null : last);
    }
    figures.get(name).add(key, kind, points, whole, extremes);
  }
  for (const [name, figure] of figures) {
    figure.element.hidden = name === NOT_FOR_STEADY_VALUES && figure.isConstant;
    figure.marks = marks;
    figure.show(settings());
  }
  const sizes = [...figures.values()].flatMap((f) => [...f.curves.values()].flatMap((c) => [c.log.length, c.live.length]));
  if (Math.max(0, ...sizes) > MOST_POINTS) number = 0;
}

function showOutput(lines, isFirst) {
  const output = get("output");
  const follows = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
  if (isFirst) output.replaceChildren();
  for (const line of lines) output.append(`${line}\n`);
  while (output.childNodes.length > MOST_LINES) output.firstChild.remove();
  if (follows && (lines.length || isFirst)) output.scrollTop = output.scrollHeight;
}

function show(news) {
  const isFirst = !number || news.number < number;
  number = news.number;
  isOver = !["runs", "stopping"].includes(news.job.state);
  showCurves(news.curves, news.marks);
  showMarks(news.marks);
  showAbout(news.settings, news.folder, news.files);
  showJob(news.job, news.ranks);
  showRanks(news.ranks);
  showOutput(news.lines, isFirst);
}

async function ask() {
  try {
    const answer = await fetch(`run?since=${number}&tab=${tab}`, { signal: AbortSignal.timeout(10000) });
    if (answer.ok) show(await answer.json());
    else showState("gone", await answer.text());
  } catch {
    if (!isOver) showState("gone", "The run has ended, or its host cannot be reached. The page shows the last data that it received.");
  }
  if (!isOver) setTimeout(ask, document.hidden ? 5 * PERIOD : PERIOD);
}

get("stop").addEventListener("click", async () => {
  get("stop").disabled = true;
  const answer = await fetch("stop", { method: "POST", headers: { "X-Mpchain-Page": "stop" } });
  if (!answer.ok) showState("runs", await answer.text());
});
for (const id of ["axis", "scale"]) {
  get(id).addEventListener("change", () => figures.forEach((figure) => figure.show(settings())));
}
ask();
