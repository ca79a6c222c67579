// One check: the module of a puzzle, made anew for it. What it prints is its answer.
"use strict";
onmessage = async ({ data: { name, state } }) => {
  const lines = [];
  const keep = (line) => lines.push(line);
  try {
    importScripts(`${name}.js`);
    await puzzle({ arguments: [`+state=${state}`], print: keep, printErr: keep });
  } catch (error) {
    keep(`The check stopped: ${error.message || error}`);
  }
  postMessage(lines);
};
