// The terminal of a serial console, or of a shell that the SSH gateway opens: xterm.js on a console session.
"use strict";

import { FitAddon } from "/ui/static/packages/@xterm/addon-fit/lib/addon-fit.mjs";
import { Terminal } from "/ui/static/packages/@xterm/xterm/lib/xterm.mjs";
import { consoleSession } from "/ui/static/console_session.js";

// A guest assumes 80 columns and 24 lines on a serial port, so that the terminal is never smaller.
const LEAST_COLUMNS = 80;
const LEAST_ROWS = 24;
const MESSAGE_BYTES = 8192;

adoptStyles();
const root = document.querySelector("[data-terminal]");
// A shell learns the size of the terminal; the guest on a serial port does not, so its user has to set it.
const hint = document.querySelector("[data-terminal-size]");
const terminal = new Terminal({
  cursorBlink: false, fontFamily: '"DejaVu Sans Mono", Consolas, monospace', fontSize: 14, minimumContrastRatio: 4.5,
  screenReaderMode: true, scrollback: 5000, theme: { background: "#10151c", foreground: "#e7ebf1", cursor: "#e7ebf1" },
});
const fit = new FitAddon();
terminal.loadAddon(fit);
terminal.open(root);
const encoder = new TextEncoder();
const session = consoleSession({
  connected: () => { terminal.reset(); terminal.focus(); },
  output: (bytes) => terminal.write(bytes),
  ended: () => {},
  first: () => (hint ? {} : size()),
});

const send = (bytes) => {
  for (let start = 0; start < bytes.length; start += MESSAGE_BYTES) session.send(bytes.slice(start, start + MESSAGE_BYTES));
};
terminal.onData((text) => send(encoder.encode(text)));
terminal.onBinary((text) => send(Uint8Array.from(text, (each) => each.charCodeAt(0))));
terminal.attachCustomKeyEventHandler((event) => {
  // Keys of the browser: Shift and Tab leave the terminal, Ctrl-V pastes, and Ctrl-C copies what is selected.
  if (event.key === "Tab" && event.shiftKey) return false;
  if (!event.ctrlKey || event.altKey) return true;
  return !(event.key.toLowerCase() === "v" || (event.key.toLowerCase() === "c" && terminal.hasSelection()));
});
new ResizeObserver(resize).observe(root);

function resize() {
  const found = fit.proposeDimensions();
  if (!found || !found.cols) return;
  if (hint) {
    terminal.resize(Math.max(LEAST_COLUMNS, found.cols), Math.max(LEAST_ROWS, found.rows));
    hint.textContent = `stty rows ${terminal.rows} columns ${terminal.cols}`;
  } else if (found.cols !== terminal.cols || found.rows !== terminal.rows) {
    terminal.resize(found.cols, found.rows);
    session.send(JSON.stringify(size()));
  }
}

function size() {
  return { columns: terminal.cols, rows: terminal.rows };
}

// xterm.js writes style elements and style attributes, which the policy of the page refuses. The same rules are
// permitted in a style sheet that a script makes, and as properties of an element. A style element is replaced by a
// template, because even an empty one is refused.
function adoptStyles() {
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    const made = create(name === "style" ? "template" : name, options);
    if (name === "style") {
      const sheet = new CSSStyleSheet();
      document.adoptedStyleSheets.push(sheet);
      Object.defineProperty(made, "textContent", { set: (rules) => sheet.replaceSync(rules) });
    } else if (name === "span") made.setAttribute = setAttribute;
    return made;
  };
}

function setAttribute(name, value) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}
