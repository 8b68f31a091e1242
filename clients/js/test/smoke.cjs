// As smoke.js, for CommonJS: smoke.cjs MODULE URL
const [module_, url] = process.argv.slice(2);
const { connect, SinewsError } = require(module_);

const client = connect(url);
const arrived = new Promise((resolve) => client.subscribe("common", ({ data }) => resolve(data)));
client.publish("common", new Uint8Array([0, 255])).then(async () => {
  const { length } = await arrived;
  const error = await client.publish("a..b", 1).catch((failure) => failure);
  client.close();
  if (length !== 2 || !(error instanceof SinewsError)) throw new Error(`${length} ${error}`);
  console.log("ok");
});
