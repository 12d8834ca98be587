// Compiles a Kaitai grammar: node kaitai_compile.cjs GRAMMAR.json OUT TARGET...
// GRAMMAR.json is the .ksy as JSON, so that no YAML library is needed. Files of a target go to OUT/<target>/.
// `kaitai-struct-compiler` (GPL, a development tool) is a library without a command; NODE_PATH says where it is.
const fs = require("fs");
const path = require("path");
const compiler = require("kaitai-struct-compiler");

async function main([grammar, out, ...targets]) {
  const ksy = JSON.parse(fs.readFileSync(grammar, "utf8"));
  for (const target of targets) {
    const files = await compiler.compile(target, ksy, null, false);
    for (const [name, text] of Object.entries(files)) {
      const file = path.join(out, target, name); // Go and Java names begin with a slash
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, text);
    }
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(String(error && error.message ? error.message : error));
  process.exit(1);
});
