import assert from "node:assert/strict";
import { test } from "node:test";

import { simulate } from "./herd.js";

test("the clients of a server that has crashed come back with the tokens that they have", { timeout: 120_000 }, async () => {
  const { start, down, again, rest, renewed } = await simulate({ clients: 500 });
  assert.deepEqual([start.tokens, start.open], [500, 500]);
  assert.ok(down.attempts > 1_000);
  assert.deepEqual([down.tokens, again.tokens, rest.tokens], [0, 0, 0]);
  assert.deepEqual([again.open, renewed.tokens], [500, 500]);
});
