// The script of the console. Pages work without it: it refreshes a page that shows something live, continues a search,
// shows the preview of a form, copies texts, and moves in time. It never makes markup from data: a refreshed part is the server's own, escaped page.
"use strict";

const REFRESH_MS = 300;
const RETRY_MS = 3000;
const PREVIEW_MS = 400;
const POLL_MS = 1500;
const SEARCH_MS = 300;
const MOST_VIEWS = 50;

prepare(document);

// Prepares what needs a script: buttons that copy, and the titles of columns, which a narrow window shows in each cell.
function prepare(root) {
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  for (const table of root.querySelectorAll(".scroll > table:not(.events)")) {
    const titles = [...table.querySelectorAll("thead th, thead td")].map((each) => (each.querySelector(".hidden") ? "" : each.textContent.trim()));
    table.classList.add("labelled");
    for (const row of table.tBodies[0].rows) {
      let column = 0;
      for (const cell of row.cells) {
        // A cell of all columns has a text instead of a row, such as "No tasks."
        if (column > 0 && titles[column] && row.cells.length > 1) cell.dataset.label = titles[column];
        column += cell.colSpan;
      }
    }
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

const slider = document.querySelector("[data-slider]");
if (slider) {
  // The times of the slider are whole seconds since 1970, and its button is for browsers without scripts.
  const moment = slider.elements.moment;
  const shown = slider.querySelector("output");
  slider.querySelector("button").hidden = true;
  moment.addEventListener("input", () => {
    shown.textContent = new Date(moment.value * 1000).toISOString().slice(0, 19).replace("T", " ");
  });
  moment.addEventListener("change", () => slider.requestSubmit());
}

// Closes a menu of the header with the key Escape, and when the focus or a click leaves it.
for (const menu of document.querySelectorAll(".top .menu, .top .links")) {
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  for (const kind of ["focusin", "click"]) {
    document.addEventListener(kind, (event) => { if (!event.composedPath().includes(menu)) menu.open = false; });
  }
}

const views = document.querySelector("[data-views]");
if (views) keepViews(views);

// Keeps named addresses of pages in the storage of this browser, for each caller apart.
function keepViews(root) {
  const key = `sliceplane.views.${root.dataset.views}`;
  const list = root.querySelector("ul");
  const isView = (each) => each && typeof each.name === "string" && /^\/ui\/[^\\]*$/.test(each.url);
  let kept = [];
  try {
    const stored = JSON.parse(localStorage.getItem(key));
    if (Array.isArray(stored)) kept = stored.filter(isView);
  } catch (error) {
    if (!(error instanceof SyntaxError)) return;  // The browser does not permit storage.
  }

  const present = () => {
    const query = new URLSearchParams(location.search);
    for (const each of ["cursor", "notice"]) query.delete(each);
    return location.pathname + (query.size ? `?${query}` : "");
  };
  const keep = (changed) => {
    kept = changed.sort((one, other) => one.name.localeCompare(other.name)).slice(0, MOST_VIEWS);
    localStorage.setItem(key, JSON.stringify(kept));
    draw();
  };
  const draw = () => {
    root.querySelector("[data-empty]").hidden = kept.length > 0;
    list.replaceChildren(...kept.map((each) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      const remove = document.createElement("button");
      link.href = each.url;
      link.textContent = each.name;
      if (each.url === present()) link.setAttribute("aria-current", "page");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove view ${each.name}`);
      remove.addEventListener("click", () => keep(kept.filter((other) => other !== each)));
      item.append(link, remove);
      return item;
    }));
  };

  root.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = event.target.elements.view.value.trim();
    if (name) keep([...kept.filter((each) => each.name !== name), { name, url: present() }]);
    event.target.reset();
  });
  root.hidden = false;
  draw();
}

const choices = [...document.querySelectorAll("[data-choice]")];
if (choices.length) choose(choices, document.querySelector("[data-choose-all]"), document.querySelector("[data-chosen]"));

// Chooses all rows of a list at once, a range with the shift key, and shows how many are chosen. Its actions need a choice.
function choose(boxes, all, shown) {
  let last = null;
  const actions = document.querySelectorAll("[data-needs-choice]");
  const count = () => {
    const chosen = boxes.filter((each) => each.checked).length;
    shown.textContent = `${chosen} of ${boxes.length} rows chosen:`;
    all.checked = chosen === boxes.length;
    all.indeterminate = chosen > 0 && chosen < boxes.length;
    for (const each of actions) each.disabled = chosen === 0;
  };
  all.closest("label").hidden = false;
  all.addEventListener("change", () => { for (const each of boxes) each.checked = all.checked; count(); });
  for (const [index, box] of boxes.entries()) {
    box.addEventListener("click", (event) => {
      if (event.shiftKey && last !== null) {
        for (const each of boxes.slice(Math.min(last, index), Math.max(last, index) + 1)) each.checked = box.checked;
      }
      last = index;
      count();
    });
  }
  // A browser restores the chosen rows when the reader goes back.
  addEventListener("pageshow", count);
}

const preview = document.querySelector("[data-preview]");
if (preview) keepPreview(preview, document.querySelector("#create"));

// Shows the preview of a form while it is filled in. A newer request ends an older one.
function keepPreview(shown, form) {
  let due = null;
  let request = new AbortController();

  const load = async () => {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      const body = new URLSearchParams(new FormData(form));
      const response = await fetch(shown.dataset.preview, { method: "POST", body, signal });
      if (response.redirected) { leadToLogin(response); return; }
      if (!response.ok) throw new Error(response.statusText);
      const part = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!signal.aborted) shown.replaceChildren(...document.adoptNode(part.body).childNodes);
    } catch (error) {
      if (!signal.aborted) shown.textContent = "The preview is not available now.";
    }
  };

  form.addEventListener("input", () => { clearTimeout(due); due = setTimeout(load, PREVIEW_MS); });
}

// Leads to the login page, which is the response to a request without a session. The login page states that the session
// has ended, and returns to this page.
function leadToLogin(response) {
  const login = new URL(response.url);
  login.searchParams.set("next", location.pathname + location.search);
  location.replace(login);
}

// A reader that selects text or has the focus in a part would lose it.
function isUsed(root) {
  const selection = document.getSelection();
  const focused = document.activeElement;
  return (selection && !selection.isCollapsed && root.contains(selection.anchorNode))
    || (focused && focused !== document.body && root.contains(focused) && focused.closest("[data-part]"));
}

// Replaces the parts of a page by the present ones of the server. Returns whether it could.
async function replaceParts(root) {
  const response = await fetch(location.pathname + location.search).catch(() => null);
  if (response && response.redirected) leadToLogin(response);
  if (!response || !response.ok || response.redirected) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of root.querySelectorAll("[data-part]")) {
    const fresh = page.querySelector(`[data-part="${part.dataset.part}"]`);
    if (fresh) part.replaceWith(document.adoptNode(fresh));
  }
  prepare(root);
  return true;
}

const polled = document.querySelector("[data-polled]");
if (polled) poll(polled);

// Refreshes a page while one of its parts shows that something is in progress. A hidden page does not use its session.
async function poll(root) {
  const shown = root.querySelector("[data-live-state]");
  while (root.querySelector("[data-in-progress]")) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    if (document.hidden) continue;
    shown.hidden = false;
    if (isUsed(root)) shown.textContent = "Live, paused while you select or use a control";
    else if (await replaceParts(root)) shown.textContent = "Live: this page updates itself";
    else shown.textContent = "Live updates are interrupted; trying again";
  }
  shown.hidden = true;
}

const search = document.querySelector("[data-search]");
if (search) continueSearch(search);

// Continues the search for events that match few filters, of which the server reads a part of the ledger per request, and
// appends what it finds, until the page is full. A hidden page does not continue. Pauses keep the search below the quota.
async function continueSearch(root) {
  const rows = root.querySelector(".events tbody");
  let state = root.querySelector("[data-search-state]");
  let found = Number(state.dataset.found);
  let next = state.querySelector("p > [rel=next]");
  let pause = SEARCH_MS;
  while (next && found < Number(root.dataset.search)) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (document.hidden) continue;
    const response = await fetch(next.href).catch(() => null);
    if (response && response.redirected) { leadToLogin(response); return; }
    pause = response && response.ok ? SEARCH_MS : RETRY_MS;
    if (pause === RETRY_MS) continue;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const more = document.adoptNode(page.querySelector(".events tbody"));
    if (!found) rows.replaceChildren(...more.children);
    else rows.append(...more.querySelectorAll("tr[id]"));
    const fresh = document.adoptNode(page.querySelector("[data-search-state]"));
    found += Number(fresh.dataset.found);
    // A reader that has the focus on the link keeps it.
    const focused = state.contains(document.activeElement);
    state.replaceWith(fresh);
    state = fresh;
    next = state.querySelector("p > [rel=next]");
    if (focused && next) next.focus();
  }
}

const live = document.querySelector("[data-live]");
if (live) follow(live);

function follow(root) {
  const shown = root.querySelector("[data-live-state]");
  let stop = null;
  let due = null;

  const show = (text) => { shown.hidden = false; shown.textContent = text; };
  const after = () => root.querySelector("[data-after]").dataset.after;

  const refresh = async () => {
    due = null;
    if (isUsed(root)) {
      show("Live, paused while you select or use a control");
      due = setTimeout(refresh, RETRY_MS);
      return;
    }
    if (await replaceParts(root)) show("Live: this page updates itself");
  };

  const watch = async () => {
    const mine = new AbortController();
    stop = mine;
    while (!mine.signal.aborted) {
      try {
        const url = `${root.dataset.live}?after=${encodeURIComponent(after())}`;
        const response = await fetch(url, { signal: mine.signal });
        if (response.redirected) { leadToLogin(response); return; }
        if (response.status === 401) { location.reload(); return; }
        if (!response.ok) throw new Error(response.statusText);
        show("Live: this page updates itself");
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
          if (piece.value.includes("data:") && due === null) due = setTimeout(refresh, REFRESH_MS);
        }
      } catch (error) {
        if (mine.signal.aborted) return;
        show("Live updates are interrupted; connecting again");
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      if (!mine.signal.aborted) await refresh();
    }
  };

  // A hidden page uses neither a connection nor its session.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (stop) stop.abort(); stop = null; }
    else if (!stop) { refresh(); watch(); }
  });
  if (!document.hidden) watch();
}
