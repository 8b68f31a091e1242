// Streams and durable topics in the pages.
import { rmSync } from "node:fs";
import { join } from "node:path";

import {
  PHONE, contains, device, eventually, expect, fitsWidth, noted, notes, openDashboard, retry, shows,
} from "./world.js";

/** Starts a server whose topics `kept.>` are durable. */
export const serveDurable = (part, options = []) =>
  part.serve(["--streams", part.folder(), "--streams-durable-topics", "kept.>", ...options]);

export async function streams(part) {
  const server = await serveDurable(part);
  const page = await part.open(server.url("healthz"));
  await part.check("a topic in a stream is resumed after a crash, without loss or repetition", async () => {
    const seq = await page.evaluate(async () => {
      const { connect } = await import("/sinews.js");
      window.client = connect(undefined, { minDelay: 50, maxDelay: 200 });
      window.heard = [];
      await client.subscribe("kept.room", ({ seq, data }) => { heard.push(`${seq} ${data}`); }, { ongap: () => note("gap") }).ready;
      return (await client.publish("kept.room", "one")).seq;
    });
    expect(seq).toBe(1);
    const heard = () => eventually(() => page.evaluate(() => window.heard));
    await heard().toEqual(["1 one"]);
    await crashThreeTimes(server, "topics/kept.room", "round", (count) => heard().toHaveLength(count));
    await heard().toEqual(["1 one", "2 round 0", "3 round 1", "4 round 2"]);
    expect(await notes(page)).not.toContain("gap");
  });
  await part.check("the client appends, and reads from any place on", async () => {
    const results = await page.evaluate(async () => {
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
    });
    const read = [[0, "k", '{"n":0}'], [1, undefined, '{"0":0,"1":255}'], [2, undefined, '"two"']];
    expect(results).toEqual({ first: 0, read, next: 3, end: 3, refused: 404, onerror: 422 });
  });
  await part.check("a consumption goes on after a crash, without loss or repetition", async () => {
    await page.evaluate(async () => {
      window.records = [];
      await stream.consume(({ offset, data }) => { records.push(`${offset} ${data}`); }, {
        from: { offset: 2 }, ongap: () => note("gap of a stream"),
      }).ready;
    });
    const records = () => eventually(() => page.evaluate(() => window.records));
    await records().toEqual(["2 two"]);
    await crashThreeTimes(server, "streams/parcels", "crash", (count) => records().toHaveLength(count));
    await records().toEqual(["2 two", "3 crash 0", "4 crash 1", "5 crash 2"]);
    expect(await notes(page)).not.toContain("gap of a stream");
  });
  await part.check("a member of a group resumes at the committed offset", async () => {
    await page.evaluate(async () => {
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
    });
    await noted(page, "assigned 0", "committed with 1", "shared");
    await server.publish("streams/jobs", "later");
    for (const data of [2, 3, "later"]) await noted(page, `second member: ${data}`);
    // Committed records are not delivered again.
    expect(await notes(page)).not.toContain("second member: 1");
    const stored = await page.evaluate(async () => (await client.stream("jobs").info()).groups[0].partitions[0].offset);
    expect(stored).toBe(2);
  });
  await part.check("the dashboard says that there are no streams yet", async () => {
    await openDashboard(page, await part.serve(["--streams", part.folder()]));
    await contains(page, "#streams-section", "Nothing has been published to a stream yet.");
    await expect(page.getByText("On disk")).toBeHidden();
  });
  await part.check("the dashboard shows a stream, its size and the lag of its groups", async () => {
    await openDashboard(page, server);
    await page.evaluate(() => new Promise((done) => {
      const socket = new WebSocket("/streams/orders");
      const send = (request) => socket.send(JSON.stringify(request));
      socket.onmessage = ({ data }) => {
        const { op, id } = JSON.parse(data);
        if (op === "welcome") send({ op: "append", id: 1, data: 1 });
        else if (id === 1) send({ op: "commit", id: 2, group: "billing", offset: 1 });
        else done();
      };
    }));
    const cells = () => page.locator("#streams tr").evaluateAll((rows) => rows
      .map((row) => [...row.cells].map((cell) => cell.innerText.replaceAll("\n", " ")))
      .find(([name]) => name.startsWith("orders")) ?? []);
    await server.publish("streams/orders", "x");
    // With its records, its file and its group.
    await eventually(async () => (await cells()).join("|")).toMatch(/\|2 offsets 0 to 1\|/);
    await eventually(async () => (await cells()).join("|")).toMatch(/ 1 file\|.*billing: 1 behind$/);
    // The input and the time of a sync are measured.
    await retry(async () => {
      await server.publish("streams/orders", "x");
      const shown = await cells();
      expect(shown[1]).toMatch(/^(?!0\/s).*\/s/);
      expect(shown[5]).toContain(" ms");
    });
  });
  await part.check("a stream that rejects appends shows the reason", async () => {
    const folder = part.folder();
    const failing = await part.serve(["--streams", folder, "--streams-segment-bytes", "64k"]);
    await failing.publish("streams/orders", "x");
    // The next file of the stream cannot be created.
    rmSync(join(folder, "streams"), { recursive: true });
    const append = () => failing.publish("streams/orders", "x".repeat(40_000)).then(() => "accepted", () => "rejected");
    await eventually(append).toBe("rejected");
    await openDashboard(page, failing);
    await shows(page, "#streams .fault", /^appends fail: [^]*orders/);
    await openDashboard(page, server);
  });
  await part.check("a phone shows streams without sideways scrolling", async () => {
    await device(page, PHONE);
    await contains(page, "#streams", "kept.room");
    await fitsWidth(page);
  });
}

/** Crashes the server three times, and publishes after each. `received` waits until the page has this many messages. */
async function crashThreeTimes(server, path, word, received) {
  for (let round = 0; round < 3; round++) {
    await server.kill();
    await server.restart();
    // It may arrive before the page is connected.
    await server.publish(path, `${word} ${round}`);
    await received(round + 2);
  }
}

