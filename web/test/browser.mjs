// The page in a browser, held to native runs of the same device.
//
//     node browser.mjs chrome|firefox PROGRAM FOLDER NATIVE [CHECK]
//
// FOLDER is the built page, NATIVE the program doorbell-web, CHECK a part of the names of those to be run. Ends with 1 when a check fails; pictures lie beside this file.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { gzipSync } from "node:zlib";
import puppeteer from "puppeteer-core";
import { serve } from "./serve.mjs";

const [kind, program, folder, native, only = ""] = process.argv.slice(2);
const FIRST = ["index.html", "style.css", "page.js"];
const FILES = readdirSync(folder).filter((name) => statSync(join(folder, name)).isFile());
// What `cargo xtask puzzle` says of each state natively.
const PUZZLES = JSON.parse(readFileSync(new URL("puzzles.json", import.meta.url)));
const CHROME = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";

const expect = JSON.parse(execFileSync(native, ["expect"], { maxBuffer: 1 << 26 }));
const { server, sent, slow, url } = await serve(folder);
const browser = await puppeteer.launch({
  browser: kind,
  executablePath: program,
  headless: true,
  args: kind === "chrome" ? CHROME.split(" ") : [],
  protocolTimeout: 300000,
});
const page = await browser.newPage();
const errors = [];
page.on("pageerror", (error) => errors.push(String(error.message)));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// The page draws what it was told in its next frame, so that frame is waited for, too.
const until = async (what, ...more) => {
  await page.waitForFunction(what, { timeout: 120000, polling: 50 }, ...more);
  await page.evaluate(() => new Promise(requestAnimationFrame));
};
const text = (id) => page.$eval(`#${id}`, (node) => node.textContent);
const click = (selector) => page.$eval(selector, (node) => {
  if (node.disabled) throw new Error(`${node.textContent} is disabled`);
  node.click();
});
const set = (id, value) => page.$eval(`#${id}`, (node, value) => {
  node.value = value;
  node.dispatchEvent(new Event("input"));
}, String(value));
const now = (member) => page.evaluate((member) => state.now[member], member);
const ready = () => until(() => state.ready && !document.getElementById("tell").disabled);
const phase = (name) => until((name) => document.getElementById("phase").textContent === name, name);
const tell = async (tokens = expect.tokens) => {
  for (const [id, value] of [["prompt", expect.prompt], ["seed", expect.seed], ["temperature", 0.8], ["tokens", tokens]]) await set(id, value);
  await click("#tell");
  await until(() => ["prefill", "decode"].includes(state.now.phase));
};
const reset = async () => {
  await click("#reset");
  await until(() => state.now.phase === "ready" && state.tokens.length === 0);
  await ready();
};

let failed = 0;
async function check(name, body) {
  // Every other one needs the page.
  if (name !== "ready" && !name.includes(only)) return;
  try {
    const said = await body();
    console.log(`${kind}: ok      ${name}${said ? `: ${said}` : ""}`);
  } catch (error) {
    ++failed;
    console.log(`${kind}: FAILED  ${name}: ${error.message}`);
    // The next check begins with a page that works.
    await page.goto(url);
    await ready().catch(() => {});
  }
}

await check("sizes", () => {
  const packed = (names) => names.reduce((sum, name) => sum + gzipSync(readFileSync(join(folder, name)), { level: 9 }).length, 0);
  const [first, all] = [packed(FIRST), packed(FILES)];
  assert.ok(first <= 600e3, `the first paint takes ${first} bytes`);
  assert.ok(all <= 3e6, `all takes ${all} bytes`);
  const modules = PUZZLES.map(({ name }) => {
    const bytes = packed(["js", "wasm", "json"].map((extension) => `puzzles/${name}.${extension}`));
    assert.ok(bytes <= 150e3, `the puzzle ${name} takes ${bytes} bytes`);
    return `${bytes} for the puzzle ${name}`;
  });
  return `${first} bytes for the first paint, ${all} in all; ${modules.join(", ")}; by gzip -9`;
});

await page.setViewport({ width: 1280, height: 900 });
await check("ready", async () => {
  const began = performance.now();
  await page.goto(url);
  await ready();
  const took = performance.now() - began;
  assert.ok(took <= 5000, `it took ${took} ms`);
  // Everything in the folder is asked for, and nothing else: no puzzle before it is opened.
  assert.deepEqual([...new Set(sent.map((file) => relative(folder, file)))].sort(), FILES.sort());
  return `${Math.round(took)} ms`;
});

await check("what is no file is answered", async () => {
  for (const [path, status] of [["%", 404], ["puzzles", 404], ["nothing", 404], ["index.html", 200]]) {
    assert.equal((await fetch(new URL(path, url))).status, status, path);
  }
});

await check("the last model that was chosen is the one that runs", async () => {
  const choose = (name) => page.$eval("#model", (select, name) => {
    select.value = name;
    select.dispatchEvent(new Event("change"));
  }, name);
  // The image of tiny takes a second; micro has none, and is there at once.
  slow.set("tiny.doorbell", 1000);
  await choose("tiny");
  await choose("micro");
  await sleep(2500);
  slow.clear();
  await ready();
  assert.deepEqual(await page.evaluate(() => [state.model, document.getElementById("model").value]), ["micro", "micro"]);
  await set("tokens", 2);
  await click("#tell");
  await phase("done");
  assert.match(await text("command"), /--model micro/);
  await choose("tiny");
  await ready();
  assert.equal(await page.evaluate(() => state.model), "tiny");
});

/** What /proc says of a process or a thread: its parent, and its processor seconds. */
function stat(path) {
  const fields = readFileSync(`${path}/stat`, "utf8").replace(/^.*\) /s, "").split(" ");
  return { parent: Number(fields[1]), seconds: (Number(fields[11]) + Number(fields[12])) / 100 };
}
const numbers = (folder) => readdirSync(folder).filter((name) => /^\d+$/.test(name));

/** Processor seconds of this browser: of all its processes, and of the threads that run workers. */
function spent() {
  const processes = new Map();
  for (const id of numbers("/proc")) {
    try {
      processes.set(Number(id), stat(`/proc/${id}`));
    } catch {
      // It ended meanwhile.
    }
  }
  const mine = (id) => id === browser.process().pid || (processes.has(id) && mine(processes.get(id).parent));
  const of = { all: 0, workers: 0 };
  for (const id of [...processes.keys()].filter(mine)) {
    of.all += processes.get(id).seconds;
    let threads = [];
    try {
      threads = numbers(`/proc/${id}/task`);
    } catch {
      // It ended meanwhile.
    }
    for (const thread of threads) {
      const path = `/proc/${id}/task/${thread}`;
      try {
        if (/^(DedicatedWorker|DOM Worker)/.test(readFileSync(`${path}/comm`, "utf8"))) of.workers += stat(path).seconds;
      } catch {
        // Likewise.
      }
    }
  }
  return of;
}

await check("a story is the native one", async () => {
  const turns = [];
  for (let turn = 0; turn < 3; ++turn) {
    await tell();
    const [began, from, before] = [performance.now(), await now("cycle"), spent()];
    await phase("done");
    const [cycles, wall, after] = [(await now("cycle")) - from, performance.now() - began, spent()];
    turns.push({ wall: cycles / wall * 1000, processor: cycles / (after.workers - before.workers) });
    assert.equal(await text("sha"), expect.run.sha256);
    assert.equal(await text("verdict"), expect.run.verdict);
    assert.equal(await text("command"), expect.run.command);
    assert.equal(await text("made"), expect.run.text);
    assert.equal(await now("made"), expect.tokens);
  }
  const natives = turns.map(() => {
    const run = ["run", "tiny", expect.prompt, String(expect.tokens), String(expect.seed)];
    const { cycles, seconds, processor_seconds } = JSON.parse(execFileSync(native, run));
    return { wall: cycles / seconds, processor: cycles / processor_seconds };
  });
  const best = (of, what) => Math.max(...of.map((turn) => turn[what]));
  const share = (what) => best(turns, what) / best(natives, what);
  // On a machine that does something else too, only processor time says how fast either is.
  const quiet = best(natives, "wall") > 0.9 * best(natives, "processor");
  const rate = (what) => {
    const tokens = best(turns, what) * expect.tokens / expect.run.cycles;
    return `${Math.round(best(turns, what))} cycles/s, ${tokens.toFixed(1)} tokens/s with the prompt, ${share(what).toFixed(2)} of native`;
  };
  const said = `${rate("wall")}; by processor time of the worker ${rate("processor")}${quiet ? "" : "; the machine is busy, so elapsed time is not judged"}`;
  if (kind === "chrome") {
    assert.ok(share("processor") >= 0.5, said);
    assert.ok(!quiet || share("wall") >= 0.5, said);
  }
  return said;
});

await check("a thousand texts are encoded as natively", async () => {
  const texts = expect.encoded.map(([text]) => text);
  const found = await page.evaluate((texts) => new Promise((resolve) => {
    const all = [];
    const hear = ({ data }) => {
      // The page asks too, when what it shows has changed.
      if (data.encoded?.text !== texts[all.length]) return;
      all.push(data.encoded.tokens);
      if (all.length < texts.length) return;
      worker.removeEventListener("message", hear);
      resolve(all);
    };
    worker.addEventListener("message", hear);
    texts.forEach((text) => worker.postMessage({ encode: text }));
  }), texts);
  assert.equal(found.length, 1000);
  found.forEach((tokens, at) => assert.deepEqual(tokens, expect.encoded[at][1], JSON.stringify(texts[at])));
});

await check("steps", async () => {
  // So many that they have not all come when it is to pause.
  await tell(64);
  await click("#run");
  await until(() => !state.running);
  const stepped = async (what, member) => {
    const [before, cycle] = [await now(member), await now("cycle")];
    await click(`[data-step=${what}]`);
    await until((cycle) => state.now.cycle > cycle, cycle);
    return [(await now(member)) - before, (await now("cycle")) - cycle];
  };
  assert.deepEqual(await stepped("cycle", "cycle"), [1, 1]);
  assert.equal((await stepped("instruction", "words"))[0], 1);
  assert.equal((await stepped("descriptor", "completions"))[0], 1);
  assert.equal((await stepped("token", "made"))[0], 1);
  await click("#run");
  await phase("done");
  assert.match(await text("verdict"), /^oracle: same bytes: 64 tokens/);
});

await check("latency", async () => {
  const took = async (latency) => {
    await set("latency", latency);
    // At rest: from here on every cycle is the story's.
    const from = await now("cycle");
    await tell(4);
    await phase("done");
    assert.match(await text("verdict"), /^oracle: same bytes: 4 tokens/);
    return (await now("cycle")) - from;
  };
  const [quick, slow] = [await took(0), await took(200)];
  await set("latency", 0);
  assert.ok(slow > 1.2 * quick, `${slow} cycles with a latency of 200, ${quick} without`);
});

await check("a flipped bit is named by its token", async () => {
  await reset();
  await click("[data-flip=weight]");
  await until(() => state.flipped);
  await tell();
  await phase("done");
  const verdict = await text("verdict");
  assert.equal(verdict, expect.flipped.verdict);
  assert.match(verdict, /^first wrong token: number \d+/);
  assert.equal(await page.$eval("#proof", (node) => node.hidden), true);
  await reset();
  await tell();
  await phase("done");
  assert.equal(await text("sha"), expect.run.sha256);
  return verdict;
});

for (const [hold, root] of [["reads", /holds back read data$/], ["writes", /holds back write responses$/]]) {
  await check(`held ${hold}: who waits for whom`, async () => {
    await tell();
    await click(`[data-hold=${hold}]`);
    await until(() => state.now.chain.length > 0);
    const chain = await now("chain");
    const [, slot] = chain[0].match(/^the host waits for the completion of (slot 0x[0-9a-f]+), the (?:DECODE|PREFILL)/) ?? assert.fail(chain[0]);
    assert.match(chain[1], new RegExp(`^${slot} \\((DECODE|PREFILL) of rollout 0\\) was read, and nothing of its queue pair holds it$`));
    assert.match(chain.at(-1), root);
    assert.ok(chain.length >= 3, chain.join(" | "));
    assert.equal(await text("phase"), "stuck");
    // Let go, it goes on where it was; held again and reset, it works anew.
    await click(`[data-hold=${hold}]`);
    await phase("done");
    assert.equal(await text("sha"), expect.run.sha256);
    await tell();
    await click(`[data-hold=${hold}]`);
    await until(() => state.now.chain.length > 0);
    await reset();
    await tell();
    await phase("done");
    assert.equal(await text("sha"), expect.run.sha256);
    return chain.join(" <- ");
  });
}

await check("what cannot be answered says why", async () => {
  await set("prompt", "");
  await click("#tell");
  await until(() => document.getElementById("verdict").className === "bad");
  assert.match(await text("verdict"), /empty: give at least a letter/);
  await set("prompt", "a ".repeat(400));
  await click("#tell");
  await until(() => document.getElementById("verdict").textContent.includes("tokens: give at most"));
  await set("prompt", "The end.");
  await set("seed", 1);
  await set("tokens", 8);
  await click("#tell");
  await until(() => state.now.phase === "done" && state.now.note);
  assert.match(await text("note"), /ended its answer at once.*it tells stories/);
  await set("seed", expect.seed);
  await set("prompt", expect.prompt);
});

await check("micro", async () => {
  await page.$eval("#model", (node) => {
    node.value = "micro";
    node.dispatchEvent(new Event("change"));
  });
  await until(() => state.ready && state.model === "micro");
  await ready();
  await tell(8);
  await phase("done");
  assert.match(await text("verdict"), /^oracle: same bytes: 8 tokens/);
});

/** The verdict of the check that runs: the text, as a terminal has it. */
const verdictOf = async () => {
  await until(() => !document.getElementById("check").disabled && document.getElementById("verdict").className);
  return page.evaluate(() => page.said[page.chosen].join("\n"));
};
for (const { name, states, hint, product } of PUZZLES) {
  await check(`puzzle ${name}`, async () => {
    const plain = (text) => text.replace(/[`*]/g, "").replace(/\s+/g, " ").trim();
    const before = sent.length;
    // Another page before, so that the address with a fragment loads it.
    await page.goto("about:blank");
    await page.goto(`${url}puzzles/index.html#${name}`);
    const as = await verdictOf();
    assert.ok(as.includes(states[0].says), as);
    assert.equal(as, states[0].text);
    // Only the module of this puzzle is loaded.
    assert.deepEqual([...new Set(sent.slice(before).filter((file) => file.endsWith(".wasm")).map((file) => relative(folder, file)))], [`puzzles/${name}.wasm`]);
    assert.equal(await page.$eval("#hint", (node) => node.hidden), true);
    await click("#ask");
    assert.equal(await page.$eval("#hint", (node) => node.hidden), false);
    assert.equal(plain(await text("hint")), plain(hint));
    for (const [number, { name: fix, says, text: native, file }] of states.entries()) {
      await click(`#choices input[value="${number}"]`);
      // What is shown is what was checked: the file without what is struck out.
      const shown = await page.$eval("#code", (node) => {
        const copy = node.cloneNode(true);
        copy.querySelectorAll("del").forEach((gone) => gone.remove());
        return copy.textContent;
      });
      assert.equal(shown, file, fix);
      await click("#check");
      assert.equal(await verdictOf(), native, fix);
      assert.equal(await page.$eval("#verdict", (node) => node.className), says === null ? "good" : "bad", fix);
      assert.equal(await page.$eval("#product", (node) => node.hidden), says !== null, fix);
    }
    const solved = states.findIndex(({ says }) => says === null);
    await click(`#choices input[value="${solved}"]`);
    await click("#check");
    await verdictOf();
    assert.ok((await text("product")).endsWith(product));
    const wrong = states.filter(({ says }) => says !== null).length;
    return `${wrong} states are still wrong, ${states.length - wrong} pass, each in the words of the native check`;
  });
}
await check("pictures of a puzzle", async () => {
  for (const [theme, width] of [["light", 1280], ["light", 390], ["dark", 1280], ["dark", 390]]) {
    if (kind !== "chrome" && theme === "dark") continue;
    await page.setViewport({ width, height: 900 });
    if (kind === "chrome") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
    await page.goto("about:blank");
    await page.goto(`${url}puzzles/index.html#full-queue`);
    await verdictOf();
    await click(`#choices input[value="${PUZZLES[0].states.findIndex(({ says }) => says === null)}"]`);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `the page is ${wide} wide in a window of ${width}`);
    await page.screenshot({ path: `${kind}-puzzle-${theme}-${width}.png`, fullPage: true });
  }
  if (kind === "chrome") await page.emulateMediaFeatures([]);
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(url);
  await ready();
});

await check("at rest it takes no processor time", async () => {
  await sleep(3000);
  const before = spent().all;
  await sleep(4000);
  const share = (spent().all - before) / 4;
  assert.ok(share < 0.1, `${share.toFixed(2)} of a core`);
  return `${(100 * share).toFixed(1)} % of a core`;
});

await check("pictures", async () => {
  await page.goto(url);
  await ready();
  await tell();
  await until(() => state.tokens.length > 20);
  for (const [theme, width] of [["light", 1280], ["light", 390], ["dark", 1280], ["dark", 390]]) {
    await page.setViewport({ width, height: 900 });
    if (kind === "chrome") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
    else if (theme === "dark") continue;
    await sleep(300);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= width, `the page is ${wide} wide in a window of ${width}`);
    await page.screenshot({ path: `${kind}-${theme}-${width}.png`, fullPage: true });
  }
});

await check("no script failed", () => assert.deepEqual(errors, []));
console.log(`${await browser.version()}: ${failed === 0 ? "all checks passed" : `${failed} checks failed`}`);
await browser.close();
server.close();
process.exit(failed === 0 ? 0 : 1);
