// What is drawn, and what the visitor asks. The device is in worker.js.
"use strict";
const $ = (id) => document.getElementById(id);
const worker = new Worker("worker.js");
const BUSY = ["publish", "prefill", "decode"];
const UNITS = ["MEM", "GEMV", "SFU", "ATTN"];
const state = { now: null, last: null, tokens: [], running: false, ready: false, drawn: false, rate: [] };

// ------------------------------------------------------------------ what the worker tells
worker.onmessage = ({ data }) => {
  if (data.encoded) return counted(data.encoded);
  // One that was asked for before may have come first; it makes room for the last.
  if (data.opened && data.opened.model === state.asked) {
    Object.assign(state, { ready: true, model: data.opened.model, pins: data.opened.pins, tokens: [], last: null });
    count();
  }
  if (data.asked || data.reset) {
    state.tokens = [];
    if (data.reset) holdIs("");
  }
  if (data.now) {
    const at = data.now.made - data.now.tokens.length;
    state.tokens.splice(at, Infinity, ...data.now.tokens);
    state.last = state.now;
    state.now = data.now;
    state.command = data.command;
    pace(data);
  }
  state.running = data.running ?? state.running;
  state.error = data.error || (data.now ? "" : state.error);
  if (data.flipped) state.flipped = `Flipped ${data.flipped}. Tell a story to see what comes of it; reset the device to mend it`;
  if (data.reset || data.opened) state.flipped = "";
  // Many messages, one drawing for each frame of the screen; none while nothing comes.
  if (!state.drawn) {
    state.drawn = true;
    requestAnimationFrame(draw);
  }
};
worker.onerror = (event) => {
  state.error = `the device could not be loaded: ${event.message || "see the console"}`;
  draw();
};

/** Cycles and tokens a second of the last second of work. */
function pace(data) {
  // The last figure stays while the device rests.
  if (data.asked) state.rate = [];
  if (data.took === undefined) return;
  const now = performance.now();
  state.rate.push([now, data.now.cycle, data.now.made]);
  while (state.rate.length > 2 && now - state.rate[0][0] > 1000) state.rate.shift();
}

// ------------------------------------------------------------------ what the visitor does
const open = (name) => {
  Object.assign(state, { ready: false, asked: name });
  worker.postMessage({ open: name });
};
const call = (what) => worker.postMessage({ call: what });
$("ask").onsubmit = (event) => {
  event.preventDefault();
  if (!state.ready) return;
  const number = (id) => Number($(id).value);
  const ask = { prompt: $("prompt").value, tokens: number("tokens"), seed: number("seed"), temperature: number("temperature") };
  if (!Number.isInteger(ask.tokens) || ask.tokens < 1) return refuse("Tokens must be a whole number of at least 1.");
  if (!Number.isInteger(ask.seed) || ask.seed < 0 || ask.seed > 0xffffffff) return refuse("The seed must be a whole number of 32 bits.");
  worker.postMessage({ ask });
};
function refuse(why) {
  state.error = why;
  draw();
}
$("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
};
let typed;
$("prompt").oninput = () => {
  clearTimeout(typed);
  typed = setTimeout(count, 120);
};
const count = () => state.ready && worker.postMessage({ encode: $("prompt").value });
function counted({ text, tokens }) {
  if (text === $("prompt").value) $("count").textContent = tokens ? `${tokens.length} tokens` : "";
}
$("model").onchange = () => {
  $("prompt").value = $("model").value === "micro" ? "once upon" : "Once upon a time, there was a little dog named";
  open($("model").value);
};
$("run").onclick = () => worker.postMessage({ run: !state.running });
for (const button of document.querySelectorAll("[data-step]")) button.onclick = () => call({ step: button.dataset.step });
$("latency").oninput = () => {
  $("latency_is").textContent = `${$("latency").value} cycles`;
  call({ latency: Number($("latency").value) });
};
for (const button of document.querySelectorAll("[data-flip]")) {
  button.onclick = () => call({ flip: button.dataset.flip });
}
for (const button of document.querySelectorAll("[data-hold]")) {
  button.onclick = () => {
    const hold = button.ariaPressed === "true" ? "nothing" : button.dataset.hold;
    holdIs(hold);
    call({ hold });
    // What is let go goes on.
    if (hold === "nothing" && state.now && BUSY.includes(state.now.phase)) worker.postMessage({ run: true });
  };
}
function holdIs(hold) {
  for (const button of document.querySelectorAll("[data-hold]")) button.setAttribute("aria-pressed", button.dataset.hold === hold);
}
$("reset").onclick = () => call("reset");
$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText($("command").textContent);
    $("copy").textContent = "Copied";
  } catch {
    // Without permission it is selected, to be copied by hand.
    getSelection().selectAllChildren($("command"));
  }
};

// ------------------------------------------------------------------ drawing
const text = (node, value) => {
  if (node.textContent !== String(value)) node.textContent = value;
};
const grouped = (number) => Math.round(number).toLocaleString("en-US").replaceAll(",", "\u202f");
const hue = (index) => (index * 137) % 360;

function draw() {
  state.drawn = false;
  const { now, running, ready, error } = state;
  const busy = now !== null && BUSY.includes(now.phase);
  const failed = now?.phase === "failed";
  $("tell").disabled = !ready || busy || failed;
  $("run").disabled = !busy;
  text($("run"), running ? "Pause" : "Run");
  for (const button of document.querySelectorAll("[data-step]")) button.disabled = !ready || !busy;
  for (const node of [$("latency"), $("reset"), ...document.querySelectorAll("[data-flip], [data-hold]")]) node.disabled = !ready;
  story();
  verdict(busy, error);
  if (!now) return;
  text($("cycle"), grouped(now.cycle));
  const [first, last] = [state.rate[0], state.rate.at(-1)];
  const seconds = first && last ? (last[0] - first[0]) / 1000 : 0;
  if (seconds > 0.1) {
    text($("rate"), grouped((last[1] - first[1]) / seconds));
    text($("pace"), ((last[2] - first[2]) / seconds).toFixed(1));
  }
  const names = { publish: "POLICY", prefill: "PREFILL", decode: "DECODE", ready: "ready", done: "done", failed: "failed" };
  text($("phase"), now.chain.length ? "stuck" : busy && !running ? `${names[now.phase]}, paused` : names[now.phase]);
  units();
  wave(now.strip);
  ring($("sq"), "submission queue: the driver writes at the tail; the device has reported the slots below the head as read", now.submission);
  ring($("cq"), "completion queue: the driver has taken and released the slots below the head", now.completed);
  descriptor();
  fields($("completion"), now.completion, false);
  text($("completions"), now.completions ? `${now.completions} have come` : "none yet");
  const registers = now.registers.map(({ name, value }) => ({ name, value: "0x" + value.toString(16) }));
  fields($("registers"), registers, false);
  text($("registers_at"), registers.length ? `read in cycle ${grouped(now.registers_at)}; reading takes cycles` : "");
}

function story() {
  const { now, tokens, running } = state;
  text($("given"), now ? now.prompt.join("") : "");
  const wrong = now?.checked?.wrong?.place;
  const made = $("made");
  const place = Number.isInteger(wrong) ? wrong : -1;
  if (place < 0) {
    text(made, tokens.map((token) => token.text).join(""));
  } else {
    const part = (of) => of.map((token) => token.text).join("");
    const mark = document.createElement("span");
    mark.className = "wrong";
    mark.textContent = tokens[place]?.text || "\u2205";
    made.replaceChildren(part(tokens.slice(0, place)), mark, part(tokens.slice(place + 1)));
  }
  $("caret").hidden = !(running && now && BUSY.includes(now.phase));
}

function verdict(busy, error) {
  const { now } = state;
  const line = $("verdict");
  const wrong = Boolean(now?.checked?.wrong);
  line.className = error || wrong || now?.phase === "failed" ? "bad" : now?.checked?.tokens ? "good" : "";
  const waits = now && !now.checked ? "ready: the model is in the device's memory" : "oracle: waits for the first token";
  text(line, error || (now ? (now.checked?.tokens || wrong ? now.verdict : waits) : "loading the device"));
  const notes = [state.flipped, now?.note].filter(Boolean).join(". ");
  $("note").hidden = !notes;
  text($("note"), notes);
  const chain = now?.chain || [];
  $("chain").hidden = chain.length === 0;
  if ($("chain").childElementCount !== chain.length || $("chain").textContent !== chain.join("")) {
    $("chain").replaceChildren(...chain.map((link) => Object.assign(document.createElement("li"), { textContent: link })));
  }
  const whole = Boolean(now?.sha256) && !wrong;
  $("proof").hidden = !whole;
  if (whole) {
    if ($("command").textContent !== state.command) text($("copy"), "Copy the command");
    text($("command"), state.command);
    text($("sha"), now.sha256);
  }
}

function units() {
  const { now, last } = state;
  const bars = $("bars");
  if (!bars.childElementCount) {
    for (const name of UNITS) {
      const bar = document.createElement("div");
      bar.className = "bar";
      bar.innerHTML = "<span></span><div><i></i></div><b></b>";
      bar.firstChild.textContent = name;
      bars.append(bar);
    }
  }
  const cycles = last ? now.cycle - last.cycle : 0;
  const pins = now.strip.at(-1) ?? 0;
  UNITS.forEach((_, unit) => {
    const [, , share] = bars.children[unit].children;
    const fill = bars.children[unit].children[1].firstChild;
    // A frame of a few cycles has no share: then it is busy, or it is not.
    const part = cycles > 1000 ? Math.min(1, (now.busy[unit] - last.busy[unit]) / cycles) : pin(pins, UNITS[unit].toLowerCase());
    if (cycles === 0 && BUSY.includes(now.phase)) return;
    fill.style.width = `${100 * part}%`;
    text(share, cycles > 1000 ? `${Math.round(100 * part)} %` : part ? "busy" : "idle");
  });
  const word = now.word;
  if (word) {
    const layer = word.layer === null ? "" : `, layer ${word.layer}`;
    text($("word"), `${grouped(now.words)} done; the last: ${UNITS[word.unit]} ${word.text} (word ${word.pc}${layer}, position ${word.position}, ${grouped(word.cycle - word.began)} cycles)`);
  }
}

/** A pin, or several, of a cycle's word; which bits they are the module has said. */
function pin(word, name) {
  const [at, bits] = state.pins[name];
  return Math.floor(word / 2 ** at) % 2 ** bits;
}

// Each row's valid, ready and ID. Data and address of a write come with one ID.
const ROWS = [
  ["registers"], ["AR", "arvalid", "arready", "arid"], ["R", "rvalid", "rready", "rid"], ["AW", "awvalid", "awready", "awid"],
  ["W", "wvalid", "wready", "awid"], ["B", "bvalid", "bready", "bid"], ["MEM", "mem"], ["GEMV", "gemv"], ["SFU", "sfu"], ["ATTN", "attn"],
];
const REGISTER_PORT = ["axil_awvalid", "axil_wvalid", "axil_bvalid", "axil_arvalid", "axil_rvalid"];

function kind(name, id) {
  if (name === "AR" || name === "R") return id >= 32 ? 2 : 0;
  return id >= 48 ? 2 : id >= 16 && id < 32 ? 1 : 0;
}

/** The colours of the theme, read once for each theme: asking for them makes the browser lay the page out. */
let palette;
function colours() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name);
  return { kinds: [0, 1, 2, 3].map((number) => color(`--k${number}`)), ink: color("--ink"), quiet: color("--quiet"), line: color("--line") };
}

function wave(strip) {
  const canvas = $("strip");
  const scale = window.devicePixelRatio || 1;
  const width = (state.width ??= canvas.clientWidth), height = 268;
  if (canvas.width !== Math.round(width * scale)) [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const draw = canvas.getContext("2d");
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  const { kinds, ink, quiet, line } = (palette ??= colours());
  const left = 74, step = 25, tall = 15;
  const most = width < 600 ? 96 : 256;
  const cycles = strip.slice(-most);
  const x = (at) => Math.round(left + (at * (width - left - 4)) / most);
  draw.font = "12px ui-monospace, monospace";
  draw.textBaseline = "middle";
  ROWS.forEach(([name, valid, ready, id], row) => {
    const top = 6 + row * step;
    draw.fillStyle = row < 6 ? ink : quiet;
    draw.fillText(name, 2, top + tall / 2);
    draw.fillStyle = line;
    draw.fillRect(left, top + tall, width - left - 4, 1);
    // What a cycle looks like: nothing, or a colour, doubled where it waits. Cycles that look alike are drawn at once.
    const look = (word) => {
      if (!(valid ? pin(word, valid) : REGISTER_PORT.some((name) => pin(word, name)))) return -1;
      const colour = id ? kind(name, pin(word, id)) : 3;
      return 2 * colour + (!ready || pin(word, ready) ? 0 : 1);
    };
    let from = 0, seen = -1;
    for (let at = 0; at <= cycles.length; ++at) {
      const now = at < cycles.length ? look(cycles[at]) : -1;
      if (now === seen) continue;
      if (seen >= 0) {
        draw.fillStyle = kinds[seen >> 1];
        const wide = x(at) - x(from);
        if (seen & 1) {
          draw.fillRect(x(from), top, wide, 2);
          draw.fillRect(x(from), top + tall - 2, wide, 2);
        } else {
          draw.fillRect(x(from), top, wide, tall);
        }
      }
      [from, seen] = [at, now];
    }
  });
  draw.fillStyle = quiet;
  draw.fillText(`cycle ${grouped(state.now.cycle - cycles.length)}`, left, 262);
  const end = grouped(state.now.cycle);
  draw.fillText(end, width - 6 - draw.measureText(end).width, 262);
}

function ring(node, what, { depth, head, tail }) {
  if (!node.childElementCount) {
    node.className = "ring";
    node.innerHTML = `<p></p><div class="slots"></div><div class="marks"></div>`;
    node.firstChild.textContent = what;
    for (let slot = 0; slot < depth; ++slot) {
      node.children[1].append(Object.assign(document.createElement("div"), { className: "slot" }));
      node.children[2].append(document.createElement("div"));
    }
  }
  for (let slot = 0; slot < depth; ++slot) {
    // The running index that this slot has, or had last.
    const behind = (tail - 1 - slot) & (depth - 1);
    const index = tail - 1 - behind;
    const box = node.children[1].children[slot];
    box.classList.toggle("full", index >= head && index < tail);
    text(box, index < 0 ? "·" : index);
    const marks = [head % depth === slot && "head", tail % depth === slot && "tail"].filter(Boolean);
    text(node.children[2].children[slot], marks.join(" "));
  }
}

function descriptor() {
  const { now } = state;
  const box = $("bytes");
  const list = now.descriptor;
  if (!list.length) return;
  if (!box.childElementCount) {
    list.forEach(({ size, name }, field) => {
      for (let byte = 0; byte < size; ++byte) {
        const cell = document.createElement("span");
        cell.style.setProperty("--h", hue(field));
        cell.title = name;
        box.append(cell);
      }
    });
  }
  for (let byte = 0; byte < 64; ++byte) text(box.children[byte], now.bytes.slice(2 * byte, 2 * byte + 2));
  fields($("fields"), list, true);
  text($("slot"), `64 bytes in slot ${now.slot % now.submission.depth}, running index ${now.slot}`);
}

/** Names of codes, as in contract/contract.toml, as far as they come up here. */
const NAMES = { opcode: { "0x1": "DECODE", "0x3": "PREFILL", "0x4": "POLICY" }, status: { "0x1": "DONE", "0xff": "ERROR" } };

function fields(node, list, colours) {
  if (node.childElementCount !== list.length) {
    node.replaceChildren();
    node.classList.toggle("plain", !colours);
    list.forEach(({ name }, index) => {
      const row = document.createElement("div");
      row.innerHTML = "<dt></dt><dd></dd>";
      if (colours) row.firstChild.style.setProperty("--h", hue(index));
      row.firstChild.textContent = name;
      node.append(row);
    });
  }
  list.forEach(({ name, value }, index) => {
    const names = NAMES[name] ?? {};
    text(node.children[index].children[1], names[value] ? `${value} ${names[value]}` : value);
  });
}

window.addEventListener("resize", () => {
  state.width = undefined;
  if (state.now) draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  palette = undefined;
  if (state.now) draw();
});
open("tiny");
