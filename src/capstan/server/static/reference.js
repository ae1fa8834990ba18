// What the reference page adds when JavaScript is on: a filter over the operations, a button that copies a command, and
// forms that make a call. The page is complete without it. The API key is read from its field when a call is made; it is
// never written to storage, to a cookie or to an address, and the field is emptied when the page is left.
"use strict";

const CALL_SECONDS = 60;
const LONGEST_SHOWN = 200000;
const SHOWN_HEADERS = [
  "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After", "X-Request-Id", "Content-Type",
  "X-Index-Block", "X-Index-Complete",
];

const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
const one = (selector, root = document) => root.querySelector(selector);

// ---- filter

function startFilter() {
  const form = one(".filter");
  const input = one("#filter");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", () => applyFilter(input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      applyFilter("");
    }
  });
}

function applyFilter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const operation of all(".operation")) {
    const matches = words.every((word) => operation.dataset.search.includes(word));
    operation.hidden = !matches;
    one(`[data-entry="${CSS.escape(operation.id)}"]`).hidden = !matches;
    shown += matches ? 1 : 0;
  }
  for (const group of all(".group")) {
    const empty = !one(".operation:not([hidden])", group);
    group.hidden = empty;
    one(`[data-group="${CSS.escape(group.id)}"]`).hidden = empty;
  }
  // With a filter on, the operations come first: what holds for all of them would push them off the screen.
  for (const section of all("#start, #headers, #errors")) section.hidden = words.length > 0;
  one(".nothing").hidden = shown > 0;
  const noun = shown === 1 ? "operation" : "operations";
  one(".filter .count").textContent = words.length ? `${shown} ${noun}` : "";
}

// ---- copy

function startCopy() {
  if (!navigator.clipboard) return;
  for (const command of all(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed by the browser";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    command.after(button);
  }
}

// ---- try it

function startTrying() {
  const keyForm = one(".key-form");
  if (keyForm) {
    keyForm.hidden = false;
    keyForm.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("pagehide", () => { one("#key").value = ""; });
  }
  for (const details of all(".try")) {
    details.hidden = false;
    one("form", details).addEventListener("submit", (event) => {
      event.preventDefault();
      send(event.currentTarget);
    });
  }
}

// The address and the options of the call that a form describes.
function callOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const input of all("[data-place]", form)) {
    const { place, name } = input.dataset;
    if (place === "path") path = path.replaceAll(`{${name}}`, encodeURIComponent(input.value));
    else if (input.value !== "" && place === "query") query.append(name, input.value);
    else if (input.value !== "") headers[name] = input.value;
  }
  const key = one("#key");
  if (key && key.value.trim() !== "" && form.dataset.keyed === "yes") {
    headers[key.dataset.header] = key.dataset.prefix + key.value.trim();
  }
  const body = one("[data-body]", form);
  const filled = body !== null && body.value.trim() !== "";
  if (filled) headers["Content-Type"] = form.dataset.media;
  const search = query.toString();
  return {
    address: location.origin + document.body.dataset.base + path + (search ? `?${search}` : ""),
    options: {
      method: form.dataset.method,
      headers,
      body: filled ? body.value : undefined,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
    },
  };
}

async function send(form) {
  const button = one("button[type=submit]", form);
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), CALL_SECONDS * 1000);
  button.disabled = true;
  tell(form, "Waiting for the response", false);
  one(".result", form).hidden = true;
  const started = performance.now();
  try {
    const { address, options } = callOf(form);
    const response = await fetch(address, { ...options, signal: stop.signal });
    const text = await response.text();
    const milliseconds = Math.round(performance.now() - started);
    show(form, response, text);
    tell(form, `${response.status} ${response.statusText}`.trim() + ` in ${milliseconds} ms`, !response.ok);
  } catch (error) {
    const reason = stop.signal.aborted ? `no response within ${CALL_SECONDS} seconds` : error.message;
    tell(form, `The call failed: ${reason}`, true);
  } finally {
    clearTimeout(timer);
    button.disabled = false;
  }
}

function tell(form, text, failed) {
  const outcome = one(".outcome", form);
  outcome.textContent = text;
  outcome.classList.toggle("failed", failed);
}

function show(form, response, text) {
  const list = one(".result-headers", form);
  list.replaceChildren();
  for (const name of SHOWN_HEADERS) {
    const value = response.headers.get(name);
    if (value === null) continue;
    const term = document.createElement("dt");
    const definition = document.createElement("dd");
    term.textContent = name;
    definition.textContent = value;
    list.append(term, definition);
  }
  const json = (response.headers.get("Content-Type") || "").includes("json");
  const shown = json && text.length <= LONGEST_SHOWN ? indent(text) : text;
  const rest = shown.length - LONGEST_SHOWN;
  one(".result-body code", form).textContent = rest > 0
    ? `${shown.slice(0, LONGEST_SHOWN)}\n… ${rest} more characters` : shown;
  one(".result", form).hidden = false;
}

// Lays out JSON without reading it: JSON.parse would round integers above 2^53, and amounts must stay exact.
function indent(text) {
  const parts = [];
  let depth = 0;
  let previous = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g) || []) {
    const closes = token === "}" || token === "]";
    const opened = previous === "{" || previous === "[";
    if (closes) depth = Math.max(0, depth - 1);
    if (closes ? !opened : opened || previous === ",") parts.push(line());
    parts.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    previous = token;
  }
  return parts.join("");
}

// ---- start

function start() {
  startFilter();
  startCopy();
  startTrying();
  if (window.matchMedia("(max-width: 60rem)").matches) one(".contents").open = false;
}

if (document.body && one("#filter")) start();
