// The device: the module, and the loop that gives it clock cycles. The page says what to do; it is told what there is to draw.
"use strict";
importScripts("doorbell-web.js");

let module;
let loading; // the module, once: it has 64 MiB of memory
let opens = 0; // models that were asked for
let running = false;
let from = 0; // tokens of the answer that the page has
let slice = 20000; // clock cycles
const FRAME = 28; // milliseconds: a slice is about as long as a frame of the page
const BUSY = ["publish", "prefill", "decode"];

// A task of its own behind each slice, so that the page's messages come in between. A timer would rest 4 ms each time.
const turn = new MessageChannel();
turn.port1.onmessage = () => running && go();

function put(bytes) {
  const place = module._tab_buffer(bytes.length);
  module.HEAPU8.set(bytes, place);
}
function answer(length) {
  const place = module._tab_answer();
  return JSON.parse(new TextDecoder().decode(module.HEAPU8.slice(place, place + length)));
}
function call(what) {
  put(new TextEncoder().encode(JSON.stringify({ call: what, from })));
  const said = answer(module._tab_call());
  if (said.now) from = said.now.made;
  return said;
}
function tell(said, more) {
  postMessage({ ...said, ...more, running });
}

async function load() {
  try {
    return await doorbell({ printErr: (line) => console.error(line) });
  } catch (error) {
    loading = undefined;
    throw error;
  }
}
async function fetched(name) {
  if (name === "micro") return new Uint8Array(0);
  const response = await fetch(name + ".doorbell");
  if (!response.ok) throw new Error(`${name}.doorbell: ${response.status}; build the page anew`);
  return new Uint8Array(await response.arrayBuffer());
}
async function open(name) {
  const mine = ++opens;
  running = false;
  loading ??= load();
  let image;
  try {
    [module, image] = await Promise.all([loading, fetched(name)]);
  } catch (error) {
    // What became of a model that nobody waits for is nobody's business.
    if (mine === opens) throw error;
  }
  // Another one was asked for meanwhile.
  if (mine !== opens) return;
  running = false;
  from = 0;
  put(image);
  const opened = answer(module._tab_open());
  if (opened.error) throw new Error(opened.error);
  // The model is published before anybody can ask.
  let said;
  do said = call({ step: { run: slice } });
  while (!said.error && said.now.phase === "publish" && said.now.chain.length === 0);
  tell(said, { opened });
}

function go() {
  const began = performance.now();
  const before = cycle;
  const said = call({ step: { run: slice } });
  const took = performance.now() - began;
  if (!said.now) {
    running = false;
    return tell(said);
  }
  cycle = said.now.cycle;
  // What takes a cycle changes as the browser compiles; what the last slice took says how long the next should be.
  if (cycle > before) slice = Math.max(2000, Math.min(400000, Math.round((cycle - before) * FRAME / Math.max(took, 1))));
  if (said.error || !BUSY.includes(said.now.phase) || said.now.chain.length > 0) running = false;
  tell(said, { took });
  if (running) turn.port2.postMessage(0);
}
let cycle = 0;

function start() {
  if (running) return;
  running = true;
  turn.port2.postMessage(0);
}

onmessage = async ({ data }) => {
  try {
    if (data.open) return await open(data.open);
    if (!module) return;
    if (data.encode !== undefined) return postMessage({ encoded: { text: data.encode, ...call({ encode: data.encode }) } });
    if (data.ask) {
      from = 0;
      const said = call({ ask: data.ask });
      if (!said.error) start();
      return tell(said, { asked: !said.error });
    }
    if (data.run === true) return start();
    if (data.run === false) {
      running = false;
      return tell(call("look"));
    }
    if (data.call) {
      if (data.call.step) running = false;
      if (data.call === "reset") [running, from] = [false, 0];
      let said = call(data.call);
      if (data.call === "reset") while (!said.error && said.now.phase === "publish" && !said.now.chain.length) said = call({ step: { run: slice } });
      cycle = said.now ? said.now.cycle : cycle;
      return tell(said, { reset: data.call === "reset" });
    }
  } catch (error) {
    running = false;
    postMessage({ error: String(error.message || error), running });
  }
};
