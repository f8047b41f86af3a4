// Replaces parts of the page by what the server sends. Without this script the page is as of its loading.
"use strict";
const live = document.getElementById("live");
const MOST_SILENT_MS = 40000; // the server says something every 15 s
const RECONNECTS_MS = 8000; // the browser tries it by itself every 3 s
let heardMs = performance.now();

function replacePart(element, html) { // what is open, and what has the focus, stays so
  const active = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const open = [...element.querySelectorAll("details")].map((one) => one.open);
  element.innerHTML = html;
  element.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? one.open; });
  if (active !== null) [...element.querySelectorAll("a")].find((one) => one.getAttribute("href") === active)?.focus();
}

function isSelected(element) { // text that is being copied stays
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
}

function cut() { // above all else, since what is below may be old
  if (document.querySelector(".cut")) return;
  const said = document.createElement("p");
  said.className = "lost cut";
  said.setAttribute("role", "status");
  said.textContent = "The connection to the server has ended: nothing below changes any more. Reload this page.";
  document.getElementById("main").prepend(said);
  live.textContent = said.textContent;
}

function checkSilence(mostMs) {
  if (performance.now() - heardMs > mostMs) cut();
}

if (document.body.dataset.updates) {
  const source = new EventSource(document.body.dataset.updates);
  source.onmessage = (message) => {
    heardMs = performance.now();
    document.querySelector(".cut")?.remove();
    for (const [id, html] of Object.entries(JSON.parse(message.data))) {
      const element = document.getElementById(id);
      if (element && element.innerHTML !== html && !isSelected(element)) {
        replacePart(element, html);
      }
    }
    live.textContent = "This page changes as the partition does.";
  };
  source.onerror = () => {
    live.textContent = "The connection to the server has ended.";
    if (source.readyState === EventSource.CLOSED) cut();
    else setTimeout(checkSilence, RECONNECTS_MS, RECONNECTS_MS);
  };
  setInterval(checkSilence, 5000, MOST_SILENT_MS);
}
