// A session on a console of a slice: the form of the page requests a ticket, the WebSocket uses it, and the page shows
// how the session goes on. Each opening gets a new ticket. The terminal and the display provide what is done with the bytes.
"use strict";

// Connects the form of the page. `connected` gets the open WebSocket, `output` the bytes of the slice, and `ended` is
// called once after each session that was connected. `first` returns further fields of the message with the ticket.
// Returns a function that sends bytes or a text, if a session is connected, and one that ends the session.
export function consoleSession({ connected, output, ended, first = () => ({}) }) {
  const form = document.querySelector("[data-console]");
  const open = form.querySelector("[data-console-open]");
  const close = form.querySelector("[data-console-close]");
  const state = document.querySelector("[data-console-state]");
  const used = document.querySelectorAll("[data-console-used]");
  let socket = null;
  let isConnected = false;
  let attempt = 0;

  const show = (phase, text) => {
    state.textContent = text;
    state.dataset.consoleState = phase;
    const isActive = phase !== "ended" && phase !== "closed";
    open.disabled = isActive;
    close.disabled = !isActive;
    for (const each of used) each.disabled = phase !== "connected";
  };
  const end = (text) => {
    const wasConnected = isConnected;
    const old = socket;
    socket = null;
    isConnected = false;
    attempt += 1;
    show("ended", text);
    open.textContent = "Open again";
    if (old) old.close();
    if (wasConnected) ended();
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // A ticket that arrives after the session was closed is not used.
    const mine = attempt;
    show("requesting", "Requesting a session…");
    try {
      const response = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      // Without a session of the console, the response is the login page: this page then leads there too.
      if (response.redirected) { location.reload(); return; }
      const answer = await response.json();
      if (mine !== attempt) return;
      if (response.ok) connect(answer);
      else end(`Refused: ${messages(answer.reasons)}`);
    } catch (error) {
      if (mine === attempt) end("The control plane does not answer. Try again.");
    }
  });
  close.addEventListener("click", () => end("Closed by you."));
  show("closed", "No session is open.");

  function connect(ticket) {
    const mine = new WebSocket(ticket.url);
    socket = mine;
    mine.binaryType = "arraybuffer";
    show("connecting", `Waiting for node ${ticket.node_id}…`);
    mine.addEventListener("open", () => mine.send(JSON.stringify({ ticket: ticket.ticket, ...first() })));
    mine.addEventListener("message", (event) => {
      if (mine !== socket) return;
      if (typeof event.data !== "string") { output(new Uint8Array(event.data)); return; }
      // noVNC reads the same WebSocket, and must get the bytes of the display only.
      event.stopImmediatePropagation();
      const message = JSON.parse(event.data);
      if (message.state === "connected") {
        isConnected = true;
        show("connected", `Connected with ${ticket.slot_id}, session ${ticket.id}.`);
        connected(mine);
      } else end(`${message.state === "refused" ? "Refused" : "Ended"}: ${messages(message.reasons || [message.reason])}.`);
    });
    // The reason of an end arrives as a message before; without it, the connection is lost.
    mine.addEventListener("close", () => { if (mine === socket) end("Ended: the connection to the control plane is lost."); });
  }

  return { send: (message) => { if (isConnected) socket.send(message); }, end };
}

function messages(reasons) {
  return reasons.map((each) => each.message).join("; ");
}
