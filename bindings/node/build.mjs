// Compiles the native part and copies it into the package.
//
//   node build.mjs [cargo options]

import { execFileSync } from 'node:child_process';
import { copyFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const options = ['build', '--release', '--message-format', 'json-render-diagnostics', ...process.argv.slice(2)];
const output = execFileSync('cargo', options, { cwd: here, stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 1 << 28 });
const library = output
  .toString()
  .split('\n')
  .filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line))
  .filter(({ reason, target }) => reason === 'compiler-artifact' && target.name === 'sinews_node')
  .flatMap(({ filenames }) => filenames)
  .find((name) => /\.(so|dylib|dll)$/.test(name));
const { platform, arch } = process;
const libc = platform !== 'linux' ? '' : process.report.getReport().header.glibcVersionRuntime ? '-gnu' : '-musl';
const target = path.join(here, `sinews.${platform}-${arch}${libc}.node`);
copyFileSync(library, target);
console.log(target);
