// Chooses the replays that are shown over time, and magnifies a part of their time. All paths are in the page, packed;
// without this script it shows two replays, whole.
"use strict";
const WIDTH = 10000, HEIGHT = 250;
const runs = JSON.parse(document.getElementById("runs")?.textContent ?? "[]");
const panels = document.querySelector(".controls") ? [...document.querySelectorAll(".runs > div")] : [];
let from = 0, to = 1; // the part that is shown

async function unpacked(run) {
  const bytes = Uint8Array.from(atob(run.data), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function drawTime(panel) {
  const time = panel.querySelector(".time");
  const unit = panel.dataset.span > 3 * 86400 ? 86400 : 3600;
  const first = (from * panel.dataset.span) / unit, last = (to * panel.dataset.span) / unit;
  const power = 10 ** Math.floor(Math.log10((last - first) / 3));
  const step = power * [5, 2, 1].find((one) => (last - first) / (power * one) >= 3);
  time.replaceChildren();
  for (let n = Math.ceil(first / step - 1e-9); n * step <= last + 1e-9 * step; n++) {
    const share = (n * step - first) / (last - first), x = `${100 * share}%`;
    time.append(svg("line", { x1: x, x2: x, y1: 0, y2: 5 }));
    const anchor = share < 0.05 ? "start" : share > 0.9 ? "end" : "middle";
    const text = svg("text", { x, y: 18, "text-anchor": anchor });
    text.textContent = String(Number((n * step).toPrecision(6)));
    if (n === Math.ceil(first / step - 1e-9)) text.textContent += unit === 3600 ? " h" : " days";
    time.append(text);
  }
}

function drawPart() { // lanes of one name have one scale
  const lanes = [...document.querySelectorAll(".lane")].filter((one) => one.lane);
  for (const one of lanes) {
    const tops = lanes.filter((other) => other.lane.name === one.lane.name).map((other) => other.lane.top);
    const top = Math.max(...tops), high = (HEIGHT * top) / one.lane.top;
    const text = Number(top.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 3 });
    one.querySelector("span").textContent = `${one.lane.name}, to ${text}${one.lane.unit}`;
    const box = [from * WIDTH, HEIGHT - high, (to - from) * WIDTH, high];
    one.querySelector("svg").setAttribute("viewBox", box.map((edge) => Number(edge.toPrecision(6))).join(" "));
  }
  panels.forEach(drawTime);
}

function look(at, share) { // at: what stays where it is, from 0 at the left edge of what is shown to 1
  const wide = Math.min(1, Math.max(0.0005, (to - from) * share));
  from = Math.min(1 - wide, Math.max(0, from + (to - from - wide) * at));
  to = from + wide;
  drawPart();
}

async function show(panel, run) {
  const lanes = await unpacked(run);
  panel.dataset.span = run.span;
  panel.querySelector("h3").textContent = run.name;
  panel.querySelectorAll(".lane").forEach((one) => one.remove());
  for (const lane of lanes) {
    const made = document.createElement("div");
    made.className = "lane";
    const said = document.createElement("span");
    made.append(said);
    made.lane = lane;
    const plot = svg("svg", { preserveAspectRatio: "none", role: "img", "aria-label": `${run.name}: ${lane.name}` });
    if (lane.line) plot.append(svg("path", { class: "area", d: lane.line }));
    if (lane.second) plot.append(svg("path", { class: "cap", d: lane.second }));
    lane.boxes.forEach((d, at) => plot.append(svg("path", { class: `job job${at}`, d })));
    if (lane.boxes.length) plot.classList.add("gantt");
    made.append(plot);
    panel.querySelector(".time").before(made);
  }
  drawPart();
}

document.querySelectorAll("[hidden]").forEach((one) => one.removeAttribute("hidden"));
panels.forEach((panel, at) => {
  const choice = document.querySelectorAll(".controls select")[at];
  choice.addEventListener("change", () => show(panel, runs[choice.value]));
  let begun = null;
  const share = (event) => {
    const box = panel.querySelector(".lane svg").getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  panel.addEventListener("pointerdown", (event) => {
    begun = event.target.closest(".lane svg") ? share(event) : null;
  });
  panel.addEventListener("pointerup", (event) => {
    const end = share(event);
    if (begun !== null && Math.abs(end - begun) > 0.01) {
      const wide = to - from, first = from;
      from = first + wide * Math.min(begun, end);
      to = first + wide * Math.max(begun, end);
      look(0, 1);
    }
    begun = null;
  });
  panel.addEventListener("dblclick", () => { from = 0; to = 1; drawPart(); });
});
const moves = {
  nearer: () => look(0.5, 0.5), further: () => look(0.5, 2),
  earlier: () => { const by = Math.min(from, (to - from) / 2); from -= by; to -= by; drawPart(); },
  later: () => { const by = Math.min(1 - to, (to - from) / 2); from += by; to += by; drawPart(); },
  whole: () => { from = 0; to = 1; drawPart(); },
};
document.querySelectorAll(".controls button").forEach((one) => one.addEventListener("click", moves[one.dataset.move]));
const loaded = Promise.all(panels.map((panel, at) => show(panel, runs[at])));
