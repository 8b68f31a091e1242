import { connect } from "/client.js";

const { url } = await (await fetch("/realtime")).json();
const cells = new Map();
let updates = 0;

const client = connect(url, {
  onstatus: ({ status, reason }) => { document.getElementById("status").textContent = reason || status; },
});

// `prices` has the last value of each key, `changed` the keys that have changed since the last call: at first all.
client.state("prices", (prices, changed) => {
  updates += 1;
  for (const symbol of changed) {
    const cell = cells.get(symbol) ?? add(symbol);
    cell.textContent = prices.get(symbol)?.toFixed(2) ?? "–";
  }
}, { interval: 100 }); // the page draws ten times a second: more updates would be of no use

function add(symbol) {
  const row = document.createElement("li");
  const cell = document.createElement("span");
  row.append(symbol, cell);
  document.getElementById("prices").append(row);
  cells.set(symbol, cell);
  return cell;
}

setInterval(() => {
  document.getElementById("rate").textContent = String(updates);
  updates = 0;
}, 1000);
