import assert from 'node:assert';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const here = path.dirname(fileURLToPath(import.meta.url));
const OPTIONS = ['--noEmit', '--strict', '--target', 'es2022', '--module', 'nodenext', '--types', 'node'];

let compiler;
try {
  compiler = createRequire(import.meta.url).resolve('typescript/bin/tsc');
} catch {
  // Reported as skipped.
}

test('programs pass the type checker', { skip: compiler === undefined && 'typescript is not installed' }, () => {
  const command = [compiler, ...OPTIONS, path.join(here, 'types.ts')];
  try {
    execFileSync(process.execPath, command, { cwd: here, encoding: 'utf8' });
  } catch (error) {
    assert.fail(error.stdout);
  }
});
