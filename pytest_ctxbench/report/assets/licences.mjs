// Writes LICENSES.txt: name, version and licence text of every package that ends up in vendor.min.js.
import {build} from "esbuild";
import {existsSync, readFileSync, readdirSync, writeFileSync} from "node:fs";

const {metafile} = await build({entryPoints: ["vendor.mjs"], bundle: true, minify: true, write: false, metafile: true});
const output = Object.values(metafile.outputs)[0];
const used = Object.entries(output.inputs).filter(([, {bytesInOutput}]) => bytesInOutput).map(([path]) => path);
const folders = new Set(used.map((path) => path.match(/^node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean));
const texts = [...folders].sort().map((folder) => {
  const {name, version, license} = JSON.parse(readFileSync(`${folder}/package.json`));
  const file = readdirSync(folder).find((entry) => /^licen[sc]e/i.test(entry));
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : "(the package holds no licence text)";
  return `${name} ${version} (${license})\n\n${text}\n`;
});
writeFileSync("LICENSES.txt", texts.join(`\n${"-".repeat(78)}\n\n`));
