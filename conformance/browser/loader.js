"use strict";
const definitions = new Map();
const loaded = new Map();

function define(name, body) {
  definitions.set(name, body);
}

function load(name) {
  const key = name.replace(/^\.\//, "");
  if (!loaded.has(key)) {
    const module = { exports: {} };
    loaded.set(key, module);
    definitions.get(key).call(undefined, load, module, module.exports);
  }
  return loaded.get(key).exports;
}
