// The chat over TLS with HTTP/2: Chromium sends the WebSocket on the connection of the page (RFC 8441).
import { join } from "node:path";

import { expect } from "./page.js";
import { Person } from "./person.js";

export async function http2(part) {
  const folder = process.env.SINEWS_CERTIFICATE;
  if (!folder) return part.test.skip("no certificate (cargo xtask browser makes one)");
  const files = ["--tls-certificate", join(folder, "certificate.pem"), "--tls-key", join(folder, "key.pem")];
  const server = await part.serve(files);
  const anna = await Person.enter(part, server.url("chat"), "Anna");
  const ben = await Person.enter(part, server.url("chat"), "Ben");
  /** A value of the server's metrics. */
  const metric = async (name) => {
    const text = await anna.page.evaluate(async () => (await fetch("/metrics")).text());
    return Number(new RegExp(`^sinews_http2_${name} (.*)$`, "m").exec(text)?.[1]);
  };
  await part.check("over TLS, each window has its WebSocket on the HTTP/2 connection of its page", async () => {
    expect(await anna.page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol)).toBe("h2");
    expect(await metric("websockets_total")).toBe(2);
    expect(await metric("connections_total")).toBeGreaterThanOrEqual(2);
  });
  await part.check("messages pass between WebSockets over HTTP/2", async () => {
    await anna.tells(ben, "Do you read me?");
    await ben.tells(anna, "Yes");
    await anna.hasDelivered();
  });
  await part.check("a reload opens a WebSocket over HTTP/2 again", async () => {
    await ben.reload();
    await anna.tells(ben, "Welcome back");
    expect(await metric("websockets_total")).toBe(3);
  });
}
