// A million messages in a thousand connections, whose last messages' handlers throw, leave no memory.

import assert from 'node:assert';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const PROGRAM = fileURLToPath(new URL('memory.mjs', import.meta.url));
/** Bytes by which the heap of JavaScript, external memory and resident memory may grow. A byte for a message is a million. */
const HEAP_MAX = 1 << 20;
const EXTERNAL_MAX = 64 << 10;
const RESIDENT_MAX = 4 << 20;
/** A young generation that grows would hide a leak. */
const OPTIONS = ['--expose-gc', '--max-semi-space-size=1'];

for (const [face, code] of [['serve', 1011], ['ws', 1000]]) {
  test(`a million messages and handlers that throw leave no memory: ${face}`, () => {
    const output = execFileSync(process.execPath, [...OPTIONS, PROGRAM, face], { encoding: 'utf8', timeout: 300_000 });
    const { codes, errors, heap, external, resident, open } = JSON.parse(output);
    assert.deepStrictEqual(codes, [code]);
    assert.strictEqual(errors, 1000);
    assert.strictEqual(open, 0);
    assert.ok(heap < HEAP_MAX, `${heap} bytes of heap`);
    assert.ok(external < EXTERNAL_MAX, `${external} external bytes`);
    assert.ok(resident < RESIDENT_MAX, `${resident} resident bytes`);
  });
}
