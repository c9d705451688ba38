// A terminal for the serial console of a slice: it shows the output as text, and sends keys. It interprets line feed,
// carriage return, backspace and tab; control sequences are left out, so programs that draw a screen are not usable.
"use strict";

const MOST_CHARACTERS = 200000;
const KEYS = {
  Enter: "\r", Backspace: "\x7f", Escape: "\x1b", Delete: "\x1b[3~", ArrowUp: "\x1b[A", ArrowDown: "\x1b[B",
  ArrowRight: "\x1b[C", ArrowLeft: "\x1b[D", Home: "\x1b[H", End: "\x1b[F", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
};
const SEQUENCE = /\x1b(?:\[[0-?]*[ -\/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -\/]*[0-~])/g;
const terminal = document.querySelector("[data-console]");
if (terminal) connect(terminal);

function connect(terminal) {
  const state = document.querySelector("[data-console-state]");
  const socket = new WebSocket(location.origin.replace(/^http/, "ws") + terminal.dataset.console);
  const decoder = new TextDecoder();
  let connected = false;
  let ended = false;
  let line = "";
  let column = 0;
  let done = "";
  socket.binaryType = "arraybuffer";
  socket.addEventListener("open", () => socket.send(JSON.stringify({ ticket: terminal.dataset.ticket })));
  socket.addEventListener("message", (event) => {
    if (typeof event.data === "string") { report(JSON.parse(event.data)); return; }
    write(decoder.decode(event.data, { stream: true }).replace(SEQUENCE, ""));
    terminal.textContent = done + line;
    terminal.scrollTop = terminal.scrollHeight;
  });
  socket.addEventListener("close", () => {
    // The reason of the end arrives as a message before; without it, the connection is lost or was closed here.
    if (!ended) state.textContent = "The connection is closed.";
    connected = false;
  });
  document.querySelector("[data-console-close]").addEventListener("click", () => socket.close());
  terminal.addEventListener("keydown", (event) => {
    const text = keyOf(event);
    if (text === null || !connected) return;
    event.preventDefault();
    send(text);
  });
  terminal.addEventListener("paste", (event) => {
    event.preventDefault();
    if (connected) send(event.clipboardData.getData("text").replace(/\r?\n/g, "\r"));
  });

  function report(message) {
    connected = message.state === "connected";
    if (connected) { state.textContent = "Connected."; terminal.focus(); return; }
    ended = true;
    const reasons = message.reasons || [message.reason];
    state.textContent = `The session ended: ${reasons.map((each) => each.message).join("; ")}`;
  }

  function send(text) {
    const bytes = new TextEncoder().encode(text);
    for (let start = 0; start < bytes.length; start += 8192) socket.send(bytes.slice(start, start + 8192));
  }

  function write(text) {
    for (const each of text) {
      if (each === "\n") { done = (done + line + "\n").slice(-MOST_CHARACTERS); line = ""; column = 0; }
      else if (each === "\r") column = 0;
      else if (each === "\b") column = Math.max(0, column - 1);
      else if (each >= " " || each === "\t") { line = line.slice(0, column) + each + line.slice(column + 1); column += 1; }
    }
  }
}

// Returns what a key sends, or null for a key that belongs to the browser. Tab leaves the terminal with Shift only.
function keyOf(event) {
  if (event.altKey || event.metaKey || event.isComposing) return null;
  if (event.ctrlKey) {
    const code = event.key.length === 1 ? event.key.toUpperCase().charCodeAt(0) : 0;
    // Ctrl-V pastes, and Ctrl-C copies what is selected.
    if (event.key === "v" || (event.key === "c" && String(getSelection()))) return null;
    return code >= 64 && code < 96 ? String.fromCharCode(code - 64) : null;
  }
  if (event.key === "Tab") return event.shiftKey ? null : "\t";
  return KEYS[event.key] || ([...event.key].length === 1 ? event.key : null);
}
