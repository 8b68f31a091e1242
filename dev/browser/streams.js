// Streams and durable topics in the pages.
import { rmSync } from "node:fs";
import { join } from "node:path";

import { examine } from "./axe.js";
import { PHONE, eventually, expect } from "./page.js";

/** Starts a server whose topics `kept.>` are durable. */
export const serveDurable = (part, options = []) =>
  part.serve(["--streams", part.folder(), "--streams-durable-topics", "kept.>", ...options]);

export async function streams(part) {
  const server = await serveDurable(part);
  const page = await part.openBare(server);
  /** Waits for the first message, and for one after each of three crashes. */
  const survivesCrashes = async (path, word, messages) => {
    for (const [crashes, text] of messages.entries()) {
      if (crashes > 0) {
        await server.kill();
        await server.restart();
        // It may arrive before the page is connected.
        await server.publish(path, text.slice(2));
      }
      await eventually(() => page.notes(word)).toEqual(messages.slice(0, crashes + 1).map((text) => word + text));
    }
    expect(await page.notes("gap")).toEqual([]);
  };
  await part.check("a topic in a stream is resumed after a crash, without loss or repetition", async () => {
    await page.script(async () => {
      window.client = connect(undefined, { minDelay: 50, maxDelay: 200 });
      const received = ({ seq, data }) => note(`topic ${seq} ${data}`);
      await client.subscribe("kept.room", received, { ongap: () => note("gap") }).ready;
      note(`published ${(await client.publish("kept.room", "one")).seq}`);
    }, "published 1");
    await survivesCrashes("topics/kept.room", "topic ", ["1 one", "2 round 0", "3 round 1", "4 round 2"]);
  });
  await part.check("the client appends, and reads from any place on", async () => {
    const read = [[0, "k", '{"n":0}'], [1, undefined, '{"0":0,"1":255}'], [2, undefined, '"two"']];
    expect(await page.evaluate(async () => {
      window.stream = client.stream("parcels");
      const first = await stream.append({ n: 0 }, { key: "k" });
      await stream.append(new Uint8Array([0, 255]), { ack: "memory" });
      await stream.append("two");
      const { records, next } = await stream.read(0);
      const read = records.map(({ offset, key, data }) => [offset, key, JSON.stringify(data)]);
      const { partitions } = await stream.info();
      const refused = await stream.append(1, { partition: 7 }).catch(({ code }) => code);
      const onerror = await new Promise((done) => {
        stream.consume(() => {}, { group: "g", partition: 0, onerror: ({ code }) => done(code) });
      });
      return { first: first.offset, read, next, end: partitions[0].end, refused, onerror };
    })).toEqual({ first: 0, read, next: 3, end: 3, refused: 404, onerror: 422 });
  });
  await part.check("a consumption goes on after a crash, without loss or repetition", async () => {
    await page.evaluate(() => stream.consume(({ offset, data }) => note(`record ${offset} ${data}`), {
      from: { offset: 2 }, ongap: () => note("gap of a stream"),
    }).ready);
    await survivesCrashes("streams/parcels", "record ", ["2 two", "3 crash 0", "4 crash 1", "5 crash 2"]);
  });
  await part.check("a member of a group resumes at the committed offset", async () => {
    await page.script(async () => {
      const jobs = client.stream("jobs");
      for (const n of [0, 1, 2, 3]) await jobs.append(n);
      const first = jobs.consume(async ({ data }) => {
        if (data !== 1) return;
        // The later records were received and not committed.
        await first.commit();
        first.stop();
        note(`committed with ${data}`);
        await jobs.consume(({ data }) => note(`second member: ${data}`), { group: "workers" }).ready;
        note("shared");
      }, { group: "workers", onassigned: (partitions) => note(`assigned ${partitions}`) });
    }, "assigned 0", "committed with 1", "shared");
    await server.publish("streams/jobs", "later");
    await page.noted(...[2, 3, "later"].map((data) => `second member: ${data}`));
    // Committed records are not delivered again.
    expect(await page.notes()).not.toContain("second member: 1");
    const stored = async () => note(`stored ${(await client.stream("jobs").info()).groups[0].partitions[0].offset}`);
    await page.script(stored, "stored 2");
  });
  await part.check("the dashboard says that there are no streams yet", async () => {
    await page.openDashboard(await part.serve(["--streams", part.folder()]));
    await page.contains("#streams-section", "Nothing has been published to a stream yet.");
    await expect(page.getByText("On disk")).toBeHidden();
  });
  await part.check("the dashboard shows a stream, its size and the lag of its groups", async () => {
    await page.openDashboard(server);
    await page.evaluate(async () => {
      await request("/streams/orders", { op: "append", data: 1 }, { op: "commit", group: "billing", offset: 1 });
    });
    await server.publish("streams/orders", "x");
    const orders = async () => (await page.rows("#streams")).find((row) => row.startsWith("orders"));
    await eventually(orders).toMatch(/ 1 file\|2 offsets 0 to 1\|.*billing: 1 behind$/);
    // The input and the time of a sync are measured.
    await eventually(async () => {
      await server.publish("streams/orders", "x");
      return orders();
    }).toMatch(/^orders\|(?!0\/s)[^|]*\/s.* ms[^|]*\|[^|]*$/);
  });
  await part.check("a stream that rejects appends shows the reason", async () => {
    const folder = part.folder();
    const failing = await part.serve(["--streams", folder, "--streams-segment-bytes", "64k"]);
    await failing.publish("streams/orders", "x");
    // The next file of the stream cannot be created.
    rmSync(join(folder, "streams"), { recursive: true });
    const append = () => failing.publish("streams/orders", "x".repeat(40_000)).then(() => "accepted", () => "rejected");
    await eventually(append).toBe("rejected");
    await page.openDashboard(failing);
    await page.shows("#streams .fault", /^appends fail: [^]*orders/);
    await page.openDashboard(server);
  });
  await part.check("a phone shows streams without sideways scrolling", () =>
    examine(page, () => page.contains("#streams", "kept.room"), [PHONE]));
}
