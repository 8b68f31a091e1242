// Compiled, not run: programs that the types must accept, and errors that they must find.
import { connect, Client, SinewsError, type Gap, type Json, type Member, type PatternPosition, type Position, type StreamRecord } from "@sinews/client";
import { connect as connectCore, Client as Core } from "@sinews/client/core";

interface Info { name: string; color?: string }
interface Cursor { x: number; y: number; by: Info; at: Date; path: { x: number }[] }
declare const cursor: Cursor, info: Info, anything: unknown, json: Json;

const client: Client = connect("wss://example.com/ws", { token: async () => "token", minDelay: 100, fallback: true });
client.subscribe<{ text: string }>("chat.room", ({ data }) => console.log(data.text.length));
const subscription = client.subscribe("chat.*", ({ topic, data, seq }) => {
  const text: string = topic;
  if (data instanceof Uint8Array) console.log(data.byteLength, text);
  else console.log(data, seq?.toFixed());
}, { last: 5, members: (members) => members.get("anna"), ongap: (gap: Gap) => console.log(gap.reason, gap.messages) });
const position: Position | PatternPosition | null = subscription.position;
if (position) client.subscribe("chat.room", () => {}, { from: position });
const { reached } = await client.publish("chat.room", { text: "hello", numbers: [1, null] });
await client.publish("chat.room", new Uint8Array(2));
await client.publish("chat.room", cursor, { idempotencyKey: true, timeout: 1000, signal: new AbortController().signal });
await client.set("cursors", "anna", cursor, { queue: false, idempotencyKey: "one" });
await client.publish("chat.room", anything);
await client.publish("chat.room", json);
await client.publish("chat.room", [1, "a", null]);
const joined = client.join("chat.room", { id: "anna", info });
await joined;
await joined.leave();
client.subscribe<Cursor, Info>("chat.room", ({ data, user, at }) => console.log(data.by.name, user?.length, at?.toFixed()), {
  members: (members) => members.get("anna")?.name.length,
});
client.state<Cursor>("cursors", (cursors) => cursors.get("anna")?.x.toFixed(), { onreset: ({ reason }) => console.log(reason) });
console.log((await client.members<Info>("chat.room"))[0]?.info?.name.length, await client.call<Info>("m", cursor, { timeout: 5 }));
client.addEventListener("status", ({ status, delay, target }) => console.log(status === "waiting" && delay?.toFixed(), target.status), { once: true });
const page = await client.history<Cursor>("chat.room", { before: { epoch: 1, seq: 2 }, last: 50 });
console.log(page.more, page.complete, page[0]?.data.by.name, client.queued.toFixed());
client.subscribe("chat.>", () => {}, { from: { positions: { "chat.a": { epoch: 1, seq: 2 } } }, recover: false });
const small: Core = connectCore("/ws", { debug: true, token: () => { throw new SinewsError(4401, "no session"); } });
small.subscribe("chat.room", () => {});
console.log(reached?.toFixed(), client.bufferedAmount, client.status === "open", client.transport === "http", client.connections[0]?.length);
const history = await client.history("chat.room", { from: { epoch: 1, seq: 2 } });
console.log(history.length, (await client.history("chat.room", 5)).at(-1)?.data);
const members: Member[] = await client.members("chat.room");
await client.join("chat.room", members[0] ?? { id: "anna", info: { name: "Anna" } });
const state = client.state<{ x: number }>("players", (keys, changed) => console.log(keys.get("anna")?.x, changed.has("anna")), { interval: 100, ongap: ({ topic, reason }) => console.log(topic, reason === "reset") });
const { seq } = await client.set("players", "anna", { x: 1 }, { ttl: 1000, version: state.version("anna") });
console.log(seq.toFixed(), (await state.ready).keys.size, (await client.delete("players", "anna", { ifExists: true })).changed);
const { renamed } = await client.call<{ renamed: boolean }>("rename", { name: "Anna" }, { topic: "chat.room" });
console.log(renamed, await client.call("ping"));
connect("/ws", { onmessage: ({ topic, data }) => console.log(topic, data), ongap: ({ reason }) => console.log(reason === "unretained") }).close();
connect("/ws", { WebSocket: class { constructor(readonly url: string) {} } }).close();
const stream = client.stream("orders");
const consumption = stream.consume((record: StreamRecord) => console.log(record.offset), { group: "billing", from: { offset: 5 } });
await consumption.commit();
const { offset } = await stream.append({ item: 1 }, { key: "k", ack: "disk" });
console.log(offset.toFixed(), (await stream.read(0, { max: 1000 })).next, (await stream.info()).groups);
await stream.delete();
try {
  await client.presence("chat.room");
} catch (error) {
  if (error instanceof SinewsError) console.log(error.code, error.needs?.subscribe);
}

// @ts-expect-error: a function is not JSON.
await client.publish("chat.room", () => {});
// @ts-expect-error: nor is a function within an object.
await client.publish("chat.room", { run: () => {} });
// @ts-expect-error: nor is a number of any size.
await client.set("a", "k", { n: 1n });
// @ts-expect-error: the smaller client has no streams.
small.stream("orders");
// @ts-expect-error: there is no such event.
client.addEventListener("open", () => {});
// @ts-expect-error: the payload may be bytes.
client.subscribe("chat.room", ({ data }) => data.text);
// @ts-expect-error: there is no such reason.
const gap: Gap = { reason: "slow" };
// @ts-expect-error: an option's name.
connect("wss://example.com/ws", { minimumDelay: 1 });
