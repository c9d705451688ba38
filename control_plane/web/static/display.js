// The display of a slice: noVNC on a console session.
"use strict";

import keysyms from "/ui/static/packages/@novnc/novnc/core/input/keysymdef.js";
import KeyTable from "/ui/static/packages/@novnc/novnc/core/input/keysym.js";
import RFB from "/ui/static/packages/@novnc/novnc/core/rfb.js";
import { consoleSession } from "/ui/static/console_session.js";

// Time between two pasted characters: a guest loses keys that arrive faster than its keyboard driver reads them.
const PASTE_MS = 20;
const SHIFT = [KeyTable.XK_Shift_L, "ShiftLeft"];
const US = keysOf({
  Backquote: "`~", Minus: "-_", Equal: "=+", BracketLeft: "[{", BracketRight: "]}", Backslash: "\\|", Semicolon: ";:",
  Quote: "'\"", Comma: ",<", Period: ".>", Slash: "/?", Space: " ",
  Digit1: "1!", Digit2: "2@", Digit3: "3#", Digit4: "4$", Digit5: "5%", Digit6: "6^", Digit7: "7&", Digit8: "8*",
  Digit9: "9(", Digit0: "0)",
});
const root = document.querySelector("[data-display]");
const paste = document.querySelector("[data-paste]");
const text = paste.elements.text;
let rfb = null;
const session = consoleSession({ connected: begin, output: () => {}, ended: finish });

function begin(socket) {
  rfb = new RFB(root, socket, { shared: true });
  rfb.scaleViewport = true;
  rfb.background = "transparent";
  const canvas = root.querySelector("canvas");
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Display: keys go to the slice; Ctrl, Alt and Shift together leave it");
  rfb.addEventListener("connect", () => rfb.focus());
  // A display that does not use the protocol, or needs a password, ends its own session only.
  rfb.addEventListener("disconnect", (event) => {
    if (rfb && !event.detail.clean) session.end("Ended: the display sent invalid data, or its connection is lost.");
  });
  rfb.addEventListener("credentialsrequired", () => session.end("Ended: the display asks for a password, which is not supported."));
}

function finish() {
  const old = rfb;
  rfb = null;
  old.disconnect();
  root.replaceChildren();
}

document.querySelector("[data-ctrl-alt-del]").addEventListener("click", () => {
  rfb.sendCtrlAltDel();
  rfb.focus();
});

// The display gets every key, Tab too: three keys that no program of a guest uses together give the focus back.
root.addEventListener("keydown", (event) => {
  if (!rfb || !(event.ctrlKey && event.altKey && event.shiftKey) || !["Control", "Alt", "Shift"].includes(event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  for (const [name, key] of [["Control", "Control_L"], ["Alt", "Alt_L"], ["Shift", "Shift_L"]]) {
    rfb.sendKey(KeyTable[`XK_${key}`], `${name}Left`, false);
  }
  document.querySelector("[data-console-close]").focus();
}, true);

paste.addEventListener("submit", async (event) => {
  event.preventDefault();
  const mine = rfb;
  const typed = [...text.value.replace(/\r\n?/g, "\n")];
  text.value = "";
  for (const each of typed) {
    if (!mine || rfb !== mine) return;
    type(each);
    await new Promise((resolve) => setTimeout(resolve, PASTE_MS));
  }
  if (mine) mine.focus();
});

// Types a character with the keys that it has on a US keyboard; one that is not there by its name only.
function type(character) {
  if (character === "\n") { rfb.sendKey(KeyTable.XK_Return, "Enter"); return; }
  if (character === "\t") { rfb.sendKey(KeyTable.XK_Tab, "Tab"); return; }
  const [code, isShifted] = US.get(character) || [undefined, false];
  if (isShifted) rfb.sendKey(...SHIFT, true);
  rfb.sendKey(keysyms.lookup(character.codePointAt(0)), code);
  if (isShifted) rfb.sendKey(...SHIFT, false);
}

function keysOf(others) {
  const found = new Map();
  for (const letter of "abcdefghijklmnopqrstuvwxyz") {
    found.set(letter, [`Key${letter.toUpperCase()}`, false]);
    found.set(letter.toUpperCase(), [`Key${letter.toUpperCase()}`, true]);
  }
  for (const [code, characters] of Object.entries(others)) {
    found.set(characters[0], [code, false]);
    if (characters[1]) found.set(characters[1], [code, true]);
  }
  return found;
}
