// Compiles the native part and copies it into the package.
//
//   node build.mjs [--glibc VERSION] [cargo options]
//
// With a version of glibc, the binary runs on systems with that version or a later one, not only on those as new as this
// one: `pip install ziglang cargo-zigbuild` has the linker.

import { execFileSync } from 'node:child_process';
import { copyFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const { platform, arch } = process;
const { glibc, rest } = glibcVersion(process.argv.slice(2));
const target = { x64: 'x86_64', arm64: 'aarch64' }[arch] + `-unknown-linux-gnu.${glibc}`;
const build = glibc ? ['zigbuild', '--target', target] : ['build'];
const profile = rest.includes('--profile') ? [] : ['--release'];
const options = [...build, ...profile, '--message-format', 'json-render-diagnostics', ...rest];
const output = execFileSync('cargo', options, { cwd: here, stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 1 << 28 });
const library = output
  .toString()
  .split('\n')
  .filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line))
  .filter(({ reason, target }) => reason === 'compiler-artifact' && target.name === 'sinews_node')
  .flatMap(({ filenames }) => filenames)
  .find((name) => /\.(so|dylib|dll)$/.test(name));
const libc = platform !== 'linux' ? '' : process.report.getReport().header.glibcVersionRuntime ? '-gnu' : '-musl';
const binary = path.join(here, `sinews.${platform}-${arch}${libc}.node`);
copyFileSync(library, binary);
console.log(binary);

/** Splits `--glibc VERSION` from the options of cargo. */
function glibcVersion(words) {
  const at = words.indexOf('--glibc');
  if (at < 0) return { rest: words };
  const [, glibc = ''] = words.splice(at, 2);
  if (!/^2\.\d+$/.test(glibc)) throw new TypeError(`--glibc ${glibc}: not a version such as 2.17`);
  return { glibc, rest: words };
}
