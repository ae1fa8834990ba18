// The scripts of the dashboard: the menu on narrow screens, copying, fields that hide others, and figures that stay
// current. Every page works without them.
"use strict";

document.documentElement.classList.add("scripted");

const menu = document.querySelector("[data-opens-menu]");
if (menu) {
  menu.addEventListener("click", () => {
    const open = document.getElementById("side").classList.toggle("open");
    menu.setAttribute("aria-expanded", String(open));
  });
}

// Copies the text of the element that `data-copies` names. Works on pages without https, too, where browsers offer no
// clipboard to scripts: then the text is selected.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copies);
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    getSelection().selectAllChildren(source);
    said = document.execCommand("copy") ? "Copied" : "Selected";
  }
  const before = button.dataset.label || button.textContent;
  button.dataset.label = before;
  button.textContent = said;
  setTimeout(() => { button.textContent = before; }, 1600);
});

// A checked box hides what `data-hides` names.
for (const box of document.querySelectorAll("[data-hides]")) {
  const other = document.getElementById(box.dataset.hides);
  const follow = () => { other.hidden = box.checked; };
  box.addEventListener("change", follow);
  follow();
}

// A choice that changes the page at once: the form is sent with what was chosen.
for (const field of document.querySelectorAll("[data-submits]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}

// Only one question is open at a time, and Escape closes it.
document.addEventListener("toggle", (event) => {
  if (!event.target.matches || !event.target.matches(".confirm[open]")) return;
  for (const other of document.querySelectorAll(".confirm[open]")) if (other !== event.target) other.open = false;
}, true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const open of document.querySelectorAll(".confirm[open]")) {
    open.open = false;
    open.querySelector("summary").focus();
  }
});

// Parts of a page with `data-live` (seconds) are fetched again with the page, while somebody looks at it.
for (const part of document.querySelectorAll("[data-live][id]")) {
  const seconds = Number(part.dataset.live);
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { redirect: "error", headers: { "x-live": "1" } });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
      if (fresh) part.replaceChildren(...fresh.childNodes);
    } catch {
      // The service is away or the session has ended: the figures stay until it answers.
    }
  }, seconds * 1000);
}

// A part with `data-stream` is replaced whenever the server sends it anew (server-sent events), while somebody looks.
for (const part of document.querySelectorAll("[data-stream][id]")) {
  const state = document.querySelector(`[data-stream-state="${part.id}"]`);
  const say = (text) => { if (state && state.textContent !== text) state.textContent = text; };
  let source = null;
  const follow = () => {
    if (document.hidden) {
      if (source) source.close();
      source = null;
      return;
    }
    if (source) return;
    source = new EventSource(part.dataset.stream);
    source.addEventListener("part", (event) => {
      say("Live.");
      const chosen = getSelection();
      const busy = part.contains(document.activeElement) || (!chosen.isCollapsed && part.contains(chosen.anchorNode));
      if (busy) return;
      part.replaceChildren(...new DOMParser().parseFromString(event.data, "text/html").body.childNodes);
    });
    source.addEventListener("full", () => say("Too many people look at this page; it becomes live later."));
    source.addEventListener("ended", () => {
      source.close();
      location.reload();
    });
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => { if (source) source.close(); });
  follow();
}
