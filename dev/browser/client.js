// `/sinews.js` in an otherwise empty page, then the pages that use it.
import { all, eventually, expect } from "./page.js";

export async function client(part) {
  const server = await part.serve(["--history", "kept.*=10"]);
  const page = await part.openBare(server);
  await part.check("the client connects, subscribes and receives its own publications", () => page.script(async () => {
    window.client = connect(undefined, { minDelay: 50, maxDelay: 200 });
    client.onstatus = ({ status }) => note(`status ${status}`);
    const ongap = ({ reason }) => note(`gap ${reason}`);
    client.subscribe("room", ({ data }) => note(`heard ${JSON.stringify(data)}`), { ongap });
    note(`reached ${(await client.publish("room", { a: [1, null] })).reached}`);
  }, "status open", "reached 1", 'heard {"a":[1,null]}'));
  await part.check("text and binary messages of other clients arrive, by name and by pattern", async () => {
    await server.publish("topics/room", 'from "curl"');
    await page.noted('heard "from \\"curl\\""');
    await page.script(async () => {
      const bytes = client.subscribe("bytes", ({ data }) => note(`bytes ${data.constructor.name} ${data}`));
      const pattern = client.subscribe("byte.*", ({ topic, data }) => note(`by pattern ${topic} ${data}`));
      await Promise.all([bytes.ready, pattern.ready]);
      await client.publish("bytes", new Uint8Array([0, 128, 255]));
      await client.publish("byte.stream", "text");
      bytes.unsubscribe();
      pattern.unsubscribe();
      await client.publish("bytes", new Uint8Array([1]).buffer);
    }, "bytes Uint8Array 0,128,255", "by pattern byte.stream text");
    expect(await page.notes("bytes ")).toHaveLength(1);
  });
  await part.check("rejections of the server are reported with their code", () => page.script(async () => {
    await client.publish("a.>", 1).catch((error) => note(`${error.name} ${error.code}`));
    const wrong = client.subscribe("a.>.b", () => {}, { onerror: ({ code }) => note(`onerror ${code}`) });
    await wrong.ready.catch(({ code }) => note(`ready ${code}`));
  }, "SinewsError 422", "onerror 422", "ready 422"));
  await part.check("presence is told as it changes", async () => {
    await page.script(() => {
      client.subscribe("hall", () => {}, { presence: (count) => note(`present ${count}`) });
      window.other = connect();
      other.subscribe("hall", () => {});
    }, "present 1", "present 2");
    await page.script(async () => { await client.presence("hall"); notes.length = 0; other.close(); }, "present 1");
  });
  await part.check("presence, members and messages arrive by HTTP if a network blocks WebSockets", async () => {
    await page.script(async () => {
      window.blocked = connect(undefined, { fallback: true, minDelay: 20, WebSocket: Blocked });
      blocked.subscribe("cellar", ({ data }) => note(`by http ${data}`), {
        members: (members) => note(`members ${[...members.keys()]}`),
        presence: (count) => note(`in the cellar ${count}`),
      });
      window.member = connect();
      await member.join("cellar", { id: "anna" });
    }, "members anna", "in the cellar 2");
    await page.script(async () => {
      const [[{ id }], present] = [await blocked.members("cellar"), await blocked.presence("cellar")];
      note([blocked.transport, blocked.connections.length, id, present].join());
      await member.publish("cellar", "a message");
      await blocked.join("cellar", { id: "ben" });
      note(`listed ${(await member.members("cellar")).map(({ id }) => id)}`);
      await blocked.leave("cellar");
    }, "http,1,anna,2", "by http a message", "listed anna,ben", "members anna,ben");
    await eventually(async () => (await page.notes("members ")).at(-1)).toBe("members anna");
    await page.script(async () => { notes.length = 0; await member.leave("cellar"); }, "members ");
    await page.evaluate(() => { blocked.close(); member.close(); });
  });
  const crash = async () => {
    await page.clearNotes();
    await server.kill();
    await page.noted("status waiting");
  };
  await part.check("a crashed server is waited for, and subscriptions are made again", async () => {
    await crash();
    await server.restart();
    await page.noted("status open", "gap unretained", "present 1");
    await server.publish("topics/room", "after the crash");
    await page.noted('heard "after the crash"');
  });
  await part.check("publications are queued while offline, lost messages are reported", async () => {
    await crash();
    await page.evaluate(() => { client.publish("room", "kept back").then(({ reached }) => note(`late ${reached}`)); });
    await server.restart();
    await page.noted('heard "kept back"', "late 1");
    // A message that is sent and never answered: the connection breaks in between.
    expect(await page.evaluate(async () => {
      intercept("", (socket) => socket.close());
      const gone = await client.publish("room", "gone").catch(({ code }) => code);
      return [gone, (await client.publish("room", 1)).reached];
    })).toEqual(["lost", 1]);
  });
  await part.check("a topic that is kept is resumed without loss or repetition", async () => {
    await server.publish("topics/kept.room", "1");
    await page.clearNotes();
    await page.script(() => {
      const heard = [];
      const received = ({ data }) => note(`kept ${heard.push(data)}: ${heard}`);
      client.subscribe("kept.room", received, { last: 5, ongap: () => note("a gap") });
    }, "kept 1: 1");
    await page.evaluate(async () => {
      // Simulates a pulled cable: the next attempt waits until it is released.
      const real = WebSocket;
      intercept("", (socket) => socket.close());
      window.WebSocket = class { close() {} };
      window.mend = () => { window.WebSocket = real; };
      await client.publish("kept.room", "lost").catch(() => {});
    });
    for (const text of ["2", "3", "4"]) await server.publish("topics/kept.room", text);
    // The client abandons a hanging attempt after its own timeout; "online" does not wait for it.
    await page.script(() => { mend(); dispatchEvent(new Event("online")); }, "kept 4: 1,2,3,4");
    const history = async () => note(`history ${(await client.history("kept.room", 2)).map(({ data }) => data)}`);
    await page.script(history, "history 3,4");
    expect(await page.notes()).not.toContain("a gap");
  });
  await part.check("waits grow, and differ", async () => {
    const delays = await page.evaluate(() => new Promise((done) => {
      const delays = [];
      const lost = connect("/nowhere", { minDelay: 8, maxDelay: 64 });
      lost.onstatus = ({ status, delay }) => {
        if (status !== "waiting" || delays.push(delay) < 8) return;
        lost.close();
        done(delays);
      };
    }));
    for (const [at, delay] of delays.entries()) {
      const most = Math.min(64, 8 * 2 ** at);
      expect(delay >= most / 2 && delay <= most, `wait ${at + 1}: ${delay}`).toBe(true);
    }
    // Five delays from the last range, in whole milliseconds.
    expect(new Set(delays.slice(3)).size).toBeGreaterThan(1);
  });
  await part.check("a URL that the browser rejects ends the client with a text", async () => {
    expect(await page.evaluate(() => {
      const end = (url) => new Promise((done) => {
        const onstatus = async ({ status, code, reason }) => {
          if (status === "closed") done([code, Boolean(reason), await publication]);
        };
        const publication = connect(url, { onstatus }).publish("room", 1).catch(({ code }) => code);
      });
      return Promise.all([`${location.origin}/ws#top`, `ftp://${location.host}/ws`].map(end));
    })).toEqual([[0, true, "closed"], [0, true, "closed"]]);
  });
  await part.check("an exception of a callback is reported, and stops nothing", async () => {
    await page.clearNotes();
    await page.script(async () => {
      addEventListener("error", (event) => { event.preventDefault(); note(event.message); });
      const faulty = client.subscribe("room", () => { throw new Error("of the page"); });
      await client.publish("room", "behind the exception");
      faulty.unsubscribe();
    }, "Uncaught Error: of the page", 'heard "behind the exception"');
  });
  await part.check("close is for good", () => page.script(async () => {
    client.close();
    note(`${client.status}, ${await client.publish("room", 1).catch(({ code }) => code)}`);
  }, "closed, closed"));
  await part.check("the start page links to the other pages", async () => {
    for (const name of ["chat", "console", "dashboard"]) {
      await page.goto(server.url());
      await page.click(`[data-testid=to-${name}]`);
      await expect(page).toHaveURL((url) => url.pathname === `/${name}`);
    }
  });
  await part.examine("on the start page", page, () => page.goto(server.url()));
  await part.examine("on the console", page, () => page.visit(server.url("console"), "connected"));
  await part.check("the console receives its own publications, and shows rejections", async () => {
    await page.visit(server.url("console"), "connected");
    await page.enter("#field-topic", "prices");
    await page.contains("#chips", "prices");
    await server.publish("topics/prices", "<b>from outside</b>");
    await page.contains("#log", "<b>from outside</b>");
    await page.click("#chips button");
    await page.isBlank("#chips");
  });
  await part.check("the dashboard draws the activity", async () => {
    await page.openDashboard(server);
    const charts = { connections: /^[1-9]\d*$/, latency: /^(?!0 ms).* ms$/, memory: /iB$/ };
    await all(...Object.entries(charts).map(([name, text]) => page.shows(`[data-testid=${name}] output`, text)));
    await expect(page.locator("[data-testid=memory] .line:not(.second)")).toHaveAttribute("d", /L/);
    await eventually(async () => {
      await server.publish("topics/prices", "1");
      return page.seen("#rates").innerText();
    }).toMatch(/^prices[^]*\/s/);
  });
  await part.examine("on the dashboard", page);
  await part.check("the console holds no error", () => {
    // Attempts to reach an offline server are expected, and a page without an icon requests one.
    expect(page.errors.filter((error) => !/WebSocket connection to|favicon\.ico/.test(error))).toEqual([]);
  });
}
