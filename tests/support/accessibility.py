"""What a page must be for everybody, checked in a real browser: labels, contrast, headings, no sideways scrolling.

Used by the tests of pages. `complaints` returns what is wrong with the page that is open, as text for people.
"""

from playwright.async_api import Page, Request

# Every visible text against the colour behind it, as WCAG 2.2 computes it; returns what is below 4.5 to 1.
LOW_CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const part = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = channels(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest("svg, option")) continue;
    const pair = [light(channels(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) low.push(`contrast ${contrast.toFixed(2)}: ${walker.currentNode.data.trim()}`);
  }
  return low;
}"""

_STRUCTURE = """() => {
  const wrong = [];
  const named = (element) => element.getAttribute("aria-label") || element.textContent.trim() || element.title;
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!field.labels.length && !field.getAttribute("aria-label")) wrong.push(`no label: ${field.outerHTML}`);
  for (const element of document.querySelectorAll("button, a[href], summary"))
    if (!named(element)) wrong.push(`no name: ${element.outerHTML}`);
  for (const image of document.querySelectorAll("img:not([alt]), svg[role=img]:not([aria-label])"))
    wrong.push(`no text instead: ${image.outerHTML.slice(0, 80)}`);
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption) wrong.push("a table without a caption");
    if (!table.querySelector("thead th[scope=col]")) wrong.push("a table without headed columns");
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((each, index) => ids.indexOf(each) !== index))) wrong.push(`twice: #${id}`);
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (!document.querySelector("main")) wrong.push("no main");
  if (!document.documentElement.lang) wrong.push("no language");
  if (document.querySelector("[style], style, script:not([src])")) wrong.push("inline style or script");
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) wrong.push(`scrolls sideways: ${width}`);
  for (const form of document.querySelectorAll("form[method=post]"))
    if (!form.querySelector("[name=form_token]")) wrong.push(`no token: ${form.action}`);
  return wrong;
}"""


async def complaints(page: Page) -> list[str]:
    """Everything that is wrong with the page."""
    found: list[str] = [*await page.evaluate(_STRUCTURE), *await page.evaluate(LOW_CONTRAST)]
    return found


def watched(page: Page) -> list[str]:
    """Everything the browser complains about from now on: script errors, blocked content, failed requests."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(f"{request.url} failed") if _counts(request) else None)
    return problems


def _counts(request: Request) -> bool:
    """Whether a failed request is news: one that the browser gave up because it left the page is none."""
    return request.failure != "net::ERR_ABORTED"
