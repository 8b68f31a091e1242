// A feed of prices: `node feed.js [CHANGES A SECOND]`. It writes each price as a key of the topic `prices`.
import { fileURLToPath } from "node:url";

const { SINEWS_API_KEY, REALTIME_URL = "http://127.0.0.1:8080" } = process.env;

/** Sets the price of a symbol. */
export async function setPrice(symbol, price, { url = REALTIME_URL, key = SINEWS_API_KEY } = {}) {
  const response = await fetch(`${url}/api/v1/topics/prices/keys/${symbol}`, {
    method: "PUT",
    headers: { authorization: `Bearer ${key}` },
    body: JSON.stringify({ data: price }),
  });
  const body = await response.text(); // read in any case, so that the connection can be used again
  if (!response.ok) throw new Error(`${symbol}: status ${response.status}: ${body}`);
}

/** Symbols with a first price. */
export function symbols(number) {
  return new Map(Array.from({ length: number }, (_, i) => [`SYM${String(i).padStart(3, "0")}`, 100 + (i % 50)]));
}

async function main(changesPerSecond) {
  const prices = symbols(200);
  const names = [...prices.keys()];
  await Promise.all(names.map((name) => setPrice(name, prices.get(name))));
  console.log(`feeding ${names.length} prices, ${changesPerSecond} changes a second`);
  for (;;) {
    const pause = new Promise((resolve) => setTimeout(resolve, 100));
    const changed = Array.from({ length: Math.ceil(changesPerSecond / 10) }, () => names[Math.floor(Math.random() * names.length)]);
    await Promise.all([...new Set(changed)].map((name) => {
      const price = prices.get(name) * (1 + (Math.random() - 0.5) / 500);
      prices.set(name, price);
      return setPrice(name, Number(price.toFixed(2)));
    })).catch((error) => console.error(error.message)); // the server is away: the next round has newer prices anyway
    await pause;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (!SINEWS_API_KEY) throw new Error("set SINEWS_API_KEY");
  await main(Number(process.argv[2] ?? 600));
}
