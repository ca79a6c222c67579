// The puzzles of the tab. Texts and checkers are those of labs/puzzles; the checkers run in worker.js.
"use strict";
const $ = (id) => document.getElementById(id);
const LIMIT = 20000; // milliseconds that a check may take
const page = { list: [], puzzle: null, chosen: 0, run: null, said: [] };

const element = (tag, more = {}) => Object.assign(document.createElement(tag), more);
const taken = async (file) => {
  const response = await fetch(file);
  if (!response.ok) throw new Error(`${file}: ${response.status}; build the page anew`);
  return response.json();
};

// ------------------------------------------------------------------ which puzzle
async function open() {
  const name = location.hash.slice(1) || page.list[0].name;
  for (const link of $("list").children) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!page.list.some((puzzle) => puzzle.name === name)) throw new Error(`there is no puzzle ${name} here: choose one above`);
  const puzzle = await taken(`${name}.json`);
  // Another one was chosen meanwhile.
  if ((location.hash.slice(1) || page.list[0].name) !== name) return;
  Object.assign(page, { puzzle, chosen: 0, said: [] });
  $("title").textContent = puzzle.title;
  $("sections").replaceChildren(...puzzle.sections.map(({ name, html }) => {
    const section = element("section", { innerHTML: html });
    section.prepend(element("h3", { textContent: name }));
    return section;
  }));
  $("name").textContent = puzzle.file;
  $("path").textContent = `labs/puzzles/${puzzle.name}/${puzzle.file}`;
  $("command").textContent = `cargo xtask puzzle ${puzzle.name}`;
  $("hint").innerHTML = puzzle.hint;
  hint(false);
  choices();
  file();
  check();
}
function hint(shown) {
  $("hint").hidden = !shown;
  $("ask").ariaExpanded = String(shown);
  $("ask").textContent = shown ? "Hide the hint" : "Show the hint";
}
$("ask").onclick = () => hint($("hint").hidden);

function choices() {
  const labels = page.puzzle.states.map(({ name }, state) => {
    const label = element("label");
    const input = element("input", { type: "radio", name: "state", value: state, checked: state === page.chosen });
    input.onchange = () => {
      page.chosen = state;
      file();
    };
    label.append(input, state === 0 ? "as it is" : name, element("span", { className: "said" }));
    return label;
  });
  $("choices").replaceChildren($("choices").firstElementChild, ...labels);
}

/** The file in the chosen state: what went and what is new is marked. */
function file() {
  const { name, parts } = page.puzzle.states[page.chosen];
  const tags = { gone: "del", new: "ins" };
  $("code").replaceChildren(...parts.map(([kind, text]) => (tags[kind] ? element(tags[kind], { textContent: text }) : text)));
  $("state").textContent = page.chosen === 0 ? "as it is" : `mended: ${name}`;
  // The first change is in view, with some lines before it.
  const first = $("code").querySelector("ins, del");
  $("code").scrollTo(0, first ? first.offsetTop - 100 : 0);
}

// ------------------------------------------------------------------ the check
$("check").onclick = () => check();
function check() {
  page.run?.stop();
  const { puzzle, chosen } = page;
  const worker = new Worker("worker.js");
  const stop = () => {
    clearTimeout(timer);
    worker.terminate();
    page.run = null;
    $("check").disabled = false;
  };
  const end = (lines) => {
    stop();
    say(chosen, lines);
  };
  const timer = setTimeout(() => end([`The check did not end within ${LIMIT / 1000} s, and was stopped.`]), LIMIT);
  page.run = { stop };
  $("check").disabled = true;
  $("verdict").className = "";
  $("verdict").textContent = "the check runs";
  for (const id of ["why", "cycles", "product"]) $(id).hidden = true;
  worker.onmessage = ({ data }) => end(data);
  worker.onerror = (event) => end([`The check could not be loaded: ${event.message || "see the console"}`]);
  worker.postMessage({ name: puzzle.name, state: chosen });
}

/** The first line is the verdict; reasons follow up to a free line, and then the last cycles, of which the newest shows it. */
function say(state, lines) {
  const { puzzle } = page;
  const solved = lines[0]?.startsWith("SOLVED:") ?? false;
  page.said[state] = lines;
  const line = $("verdict");
  line.className = solved ? "good" : "bad";
  line.textContent = lines[0] ?? "The check stopped before it came to a verdict.";
  $("of").textContent = state === 0 ? "of the file as it is" : `of: ${puzzle.states[state].name}`;
  const table = lines.findIndex((line) => line.startsWith("  cycle |"));
  const why = lines.slice(1, table < 0 ? undefined : table).join("\n").trim();
  $("why").hidden = !why;
  $("why").textContent = why;
  $("cycles").hidden = table < 0;
  if (table >= 0) {
    const rows = lines.slice(table).filter((row) => row.trim());
    $("cycles").replaceChildren(...rows.map((row, at) => element("div", { textContent: row.slice(2), className: at === rows.length - 1 ? "last" : "" })));
  }
  const said = $("choices").querySelectorAll(".said")[state];
  said.className = `said ${solved ? "good" : "bad"}`;
  said.textContent = solved ? "passes" : "still wrong";
  $("product").hidden = !solved;
  if (solved) {
    $("product").replaceChildren("Its counterpart in the product: ", element("code", { textContent: puzzle.product }));
    [...$("list").children].find((link) => link.hash === `#${puzzle.name}`).classList.add("solved");
  }
}

function fail(error) {
  $("verdict").className = "bad";
  $("verdict").textContent = String(error.message || error);
}
window.addEventListener("hashchange", () => open().catch(fail));
(async () => {
  page.list = await taken("puzzles.json");
  $("list").replaceChildren(...page.list.map(({ name, what }) => element("a", { href: `#${name}`, textContent: what })));
  await open();
})().catch(fail);
