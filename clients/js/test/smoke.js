// Every kind of request, in any runtime: smoke.js MODULE URL
const [module, url] = (globalThis.Deno?.args ?? globalThis.process.argv.slice(2));
const { connect } = await import(module);

const client = connect(url);
const arrived = new Promise((resolve) => client.subscribe("smoke", ({ data }) => data instanceof Uint8Array && resolve(data)));
await client.join("smoke", { id: "runtime" });
await client.publish("smoke", { text: "hello" });
await client.publish("smoke", new Uint8Array([0, 255]));
const bytes = await arrived;
const [{ id }] = await client.members("smoke");
const { offset } = await client.stream("smoke").append("record");
client.close();
if (id !== "runtime" || bytes.length !== 2 || offset !== 0) throw new Error(`${id} ${bytes} ${offset}`);
console.log("ok");
