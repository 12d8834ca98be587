"use strict";
// The page: takes a file, asks a worker for its structure and others for digests, and draws what they say.

const { $ } = require("./elements");
const { Session } = require("./session");

let session = null;

function open(file) {
  session?.end();
  session = new Session(file);
}

const drop = $("drop");
$("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = ""; // or the same file could not be chosen again
  if (file) open(file);
});
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  if (file) open(file);
});
