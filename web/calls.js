// The calls of the console: the fields of each, and the same call as a program in four languages.
//
// Values of fields reach a program as literals of its language only, never as its text.

/** A text as a word of a shell. */
export const sh = (text) => `'${text.replaceAll("'", "'\\''")}'`;
/** A value as a literal of JavaScript. */
export const js = (value) => JSON.stringify(value);
/** A value as a literal of Python. The strings of JSON are strings of Python, too. */
export function py(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(py).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, item]) => `${js(key)}: ${py(item)}`).join(", ")}}`;
  return js(value);
}
/** A text as a raw string of Rust, with enough number signs for the number signs after quotes within. */
function rs(text) {
  const most = Math.max(0, ...[...text.matchAll(/"(#*)/g)].map(([, signs]) => signs.length + 1));
  return `r${"#".repeat(most)}"${text}"${"#".repeat(most)}`;
}

/** Parses objects and lists as JSON; a number or a word is more likely text. */
export function dataOf(text) {
  try { return /^\s*[[{]/.test(text) ? JSON.parse(text) : text; } catch { return text; }
}
const path = (...parts) => parts.map(encodeURIComponent).join("/");
const isText = (data) => typeof data === "string";

// ---- Templates of programs -------------------------------------------------------------------------------------------

const curl = ({ origin, token }, { flags = "", to, body, type }) => ["curl", flags,
  token && '-H "Authorization: Bearer $SINEWS_TOKEN"',
  type && `-H ${sh(`Content-Type: ${type}`)}`,
  body !== undefined && `${body.startsWith("@") ? "--data-raw" : "-d"} ${sh(body)}`, sh(origin + to)].filter(Boolean).join(" ");

const pipe = ({ ws, token }, messages, wait) => `printf '%s\\n' ${messages.map((message) => sh(js(message))).join(" \\\n  ")} |
  sinews connect ${token ? '-H "Authorization: Bearer $SINEWS_TOKEN" ' : ""}--wait ${wait} ${sh(ws)}`;

const javascript = ({ ws, token }, lines, stays = false) => [
  "// npm install CHECKOUT/clients/js",
  'import { connect } from "@sinews/client";', "",
  token ? `const client = connect(${js(ws)}, { token: process.env.SINEWS_TOKEN });` : `const client = connect(${js(ws)});`,
  ...lines, ...(stays ? [] : ["client.close();"])].join("\n");

/** A program with `urllib` of the standard library. */
function python({ origin, token }, { to, method, body, headers = {} }, lines) {
  const data = body === undefined ? "" : ", data=body";
  const added = Object.entries(headers).map(([key, value]) => `${js(key)}, ${js(value)}`);
  if (token) added.push('"Authorization", "Bearer " + os.environ["SINEWS_TOKEN"]');
  return [`import json${token ? ", os" : ""}, urllib.request`, "",
    ...(body === undefined ? [] : [`body = ${body}`]),
    `request = urllib.request.Request(${js(origin + to)}${data}${method ? `, method="${method}"` : ""})`,
    ...added.map((header) => `request.add_header(${header})`),
    "with urllib.request.urlopen(request) as response:", ...lines.map((line) => `    ${line}`)].join("\n");
}
const PRINT = ["print(response.read().decode())"];

/** A program with the package `websockets`, for calls that live as long as a connection. */
const pythonSocket = ({ ws, token }, messages, lines) => [
  "# pip install websockets", `import json${token ? ", os" : ""}`, "from websockets.sync.client import connect", "",
  ...(token ? ['headers = {"Authorization": "Bearer " + os.environ["SINEWS_TOKEN"]}'] : []),
  `with connect(${js(ws)}${token ? ", additional_headers=headers" : ""}) as socket:`,
  ...messages.map((message) => `    socket.send(json.dumps(${py(message)}))`), ...lines.map((line) => `    ${line}`),
].join("\n");

/** A program with the crate `sinews`. It ends with the answer to the last message, or prints messages until it is stopped. */
function rust({ ws, token }, messages, stays = false) {
  const connected = token
    ? `sinews::connect(${rs(ws)}).header("Authorization", format!("Bearer {}", std::env::var("SINEWS_TOKEN")?))`
    : `sinews::connect(${rs(ws)})`;
  const last = messages.at(-1).id;
  return ["// cargo add sinews --path CHECKOUT/crates/sinews", "// cargo add tokio --features macros,rt",
    '#[tokio::main(flavor = "current_thread")]',
    "async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {",
    `    let mut ws = ${connected}.await?;`,
    ...messages.map((message) => `    ws.send(${rs(js(message))}).await?;`),
    "    while let Some(message) = ws.next().await.transpose()? {",
    "        let text = message.as_text().unwrap_or_default();",
    '        println!("{text}");',
    ...(stays ? [] : [`        if text.contains(${rs(`"id":${last}`)}) {`, "            break;", "        }"]),
    "    }", "    Ok(())", "}"].join("\n");
}

// ---- Calls -----------------------------------------------------------------------------------------------------------

const TOPIC = { name: "topic", label: "Topic", value: "lobby", required: true };
const LAST = { name: "last", label: "Messages", value: "10", kind: "number", required: true };
const KEY = { name: "key", label: "Key", value: "anna", required: true };
const MEMBER = [TOPIC, { name: "id", label: "Id of the member", value: "anna", required: true },
  { name: "info", label: "Info, as JSON", value: '{"name": "Anna"}' }];
const STREAM = { name: "stream", label: "Stream", value: "orders", required: true };

const memberOf = ({ id, info }) => (info.trim() ? { id, info: dataOf(info) } : { id });
const joining = (values) => ({ op: "join", id: 1, topic: values.topic, member: memberOf(values) });
/** Text is sent as it is, other data as JSON. */
const bodyOf = (data) => (isText(data) ? { body: data } : { body: js(data), type: "application/json" });
const pyBody = (data) => (isText(data)
  ? { body: `${js(data)}.encode()`, headers: { "Content-Type": "text/plain" } }
  : { body: `json.dumps(${py(data)}).encode()`, headers: { "Content-Type": "application/json" } });
const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};
const number = (text) => (text === "" ? undefined : Number(text));

/** Each call: its group, its fields, and `code(values, where)`, which returns a program for each language. */
export const CALLS = [
  {
    id: "subscribe", group: "Messages", title: "Subscribe", run: "Subscribe",
    about: "Receives the messages of a topic. Patterns: * is one part between dots, > at the end is the rest.",
    fields: [{ ...TOPIC, label: "Topic or pattern" }, { ...LAST, label: "Retained messages to begin with", value: "", required: false }],
    code: ({ topic, last }, where) => ({
      curl: curl(where, { flags: "-N", to: `/topics/${path(topic)}${query({ last })}` }),
      javascript: javascript(where, [`client.subscribe(${js(topic)}, ({ topic, data }) => console.log(topic, data)${last ? `, { last: ${number(last)} }` : ""});`], true),
      python: python(where, { to: `/topics/${path(topic)}${query({ last })}`, headers: { Accept: "application/x-ndjson" } }, [
        "for line in response:", "    message = json.loads(line)", '    if message["op"] == "message":',
        '        print(message["topic"], message.get("data"), flush=True)']),
      rust: rust(where, [{ op: "subscribe", id: 1, topic, ...(last && { last: number(last) }) }], true),
    }),
  },
  {
    id: "publish", group: "Messages", title: "Publish", run: "Publish",
    about: "Sends a message to all subscribers of a topic.",
    fields: [TOPIC, { name: "data", label: "Message: text, or JSON such as {\"eur\": 1}", value: "hello", kind: "text" }],
    code: ({ topic, data }, where) => {
      const content = dataOf(data);
      const to = `/topics/${path(topic)}`;
      return {
        curl: curl(where, { to, ...bodyOf(content) }),
        javascript: javascript(where, [`const { reached } = await client.publish(${js(topic)}, ${js(content)});`,
          "console.log(`delivered to ${reached} subscriptions`);"]),
        python: python(where, { to, ...pyBody(content) }, PRINT),
        rust: rust(where, [{ op: "publish", id: 1, topic, data: content }]),
      };
    },
  },
  {
    id: "history", group: "Messages", title: "History", run: "Read",
    about: "Reads the last retained messages of a topic. The server retains messages of the topics in its option --history, such as --history 'chat.>=100', and of durable topics.",
    fields: [TOPIC, LAST],
    code: ({ topic, last }, where) => ({
      curl: curl(where, { flags: "-H 'Accept: application/json'", to: `/topics/${path(topic)}${query({ wait: 0, last })}` }),
      javascript: javascript(where, [`for (const { seq, data } of await client.history(${js(topic)}, ${number(last)})) {`, "  console.log(seq, data);", "}"]),
      python: python(where, { to: `/topics/${path(topic)}${query({ wait: 0, last })}`, headers: { Accept: "application/json" } }, [
        'for message in json.load(response)["messages"]:', '    if message["op"] == "message":', '        print(message.get("seq"), message.get("data"))']),
      rust: rust(where, [{ op: "history", id: 1, topic, last: number(last) }]),
    }),
  },
  {
    id: "join", group: "Presence", title: "Join", run: "Join",
    about: "Makes this connection present in a topic, until it leaves or ends. With a token, the id is its sub.",
    fields: MEMBER,
    code: (values, where) => ({
      curl: `# A member is present as long as its connection, so this is a WebSocket. Ctrl-C leaves.\n${pipe(where, [joining(values)], "1h")}`,
      javascript: javascript(where, [`await client.join(${js(values.topic)}, ${js(memberOf(values))});`, 'console.log("present until this program ends");'], true),
      python: pythonSocket(where, [joining(values)], ["for message in socket:", "    print(message, flush=True)"]),
      rust: rust(where, [joining(values)], true),
    }),
  },
  {
    id: "leave", group: "Presence", title: "Leave", run: "Leave",
    about: "Ends the presence of this connection in a topic. Only the connection that has joined can leave, so the programs join first.",
    fields: MEMBER,
    code: (values, where) => {
      const messages = [joining(values), { op: "leave", id: 2, topic: values.topic }];
      return {
        curl: `# A member is present as long as its connection, so this is a WebSocket.\n${pipe(where, messages, "1s")}`,
        javascript: javascript(where, [`await client.join(${js(values.topic)}, ${js(memberOf(values))});`, `await client.leave(${js(values.topic)});`]),
        python: pythonSocket(where, messages, ["for message in socket:", "    print(message)", '    if json.loads(message).get("id") == 2:', "        break"]),
        rust: rust(where, messages),
      };
    },
  },
  {
    id: "members", group: "Presence", title: "Members", run: "List",
    about: "Lists the members of a topic.",
    fields: [TOPIC],
    code: ({ topic }, where) => ({
      curl: curl(where, { to: `/topics/${path(topic)}/members` }),
      javascript: javascript(where, [`for (const { id, info } of await client.members(${js(topic)})) {`, "  console.log(id, info);", "}"]),
      python: python(where, { to: `/topics/${path(topic)}/members` }, ['for member in json.load(response)["members"]:', '    print(member["id"], member.get("info"))']),
      rust: rust(where, [{ op: "members", id: 1, topic }]),
    }),
  },
  {
    id: "watch", group: "Keys", title: "Watch", run: "Watch",
    about: "Receives the keys of a topic, then each change. Keys are state: a new subscriber gets all of them.",
    fields: [{ ...TOPIC, value: "players" }],
    code: ({ topic }, where) => ({
      curl: curl(where, { flags: "-N -H 'Accept: text/event-stream'", to: `/topics/${path(topic)}/keys` }),
      javascript: javascript(where, [`client.state(${js(topic)}, (keys, changed) => {`, "  for (const key of changed) console.log(key, keys.get(key));", "});"], true),
      python: python(where, { to: `/topics/${path(topic)}/keys`, headers: { Accept: "application/x-ndjson" } }, ["for line in response:", "    print(json.loads(line), flush=True)"]),
      rust: rust(where, [{ op: "subscribe", id: 1, topic, keys: true }], true),
    }),
  },
  {
    id: "set", group: "Keys", title: "Set", run: "Set",
    about: "Sets a key of a topic. With a time to live, the key expires unless it is set again.",
    fields: [{ ...TOPIC, value: "players" }, KEY, { name: "data", label: "Value: text or JSON", value: '{"x": 10, "y": 20}', kind: "text" },
      { name: "ttl", label: "Time to live in ms", value: "", kind: "number" }],
    code: ({ topic, key, data, ttl }, where) => {
      const content = dataOf(data);
      const to = `/topics/${path(topic)}/keys/${path(key)}${query({ ttl })}`;
      return {
        curl: curl(where, { flags: "-X PUT", to, ...bodyOf(content) }),
        javascript: javascript(where, [`const { seq } = await client.set(${js(topic)}, ${js(key)}, ${js(content)}${ttl ? `, { ttl: ${number(ttl)} }` : ""});`, "console.log(seq);"]),
        python: python(where, { to, method: "PUT", ...pyBody(content) }, PRINT),
        rust: rust(where, [{ op: "set", id: 1, topic, key, data: content, ...(ttl && { ttl: number(ttl) }) }]),
      };
    },
  },
  {
    id: "delete", group: "Keys", title: "Delete", run: "Delete",
    about: "Deletes a key of a topic.",
    fields: [{ ...TOPIC, value: "players" }, KEY],
    code: ({ topic, key }, where) => {
      const to = `/topics/${path(topic)}/keys/${path(key)}`;
      return {
        curl: curl(where, { flags: "-X DELETE", to }),
        javascript: javascript(where, [`const { changed } = await client.delete(${js(topic)}, ${js(key)});`, 'console.log(changed === false ? "no such key" : "deleted");']),
        python: python(where, { to, method: "DELETE" }, PRINT),
        rust: rust(where, [{ op: "delete", id: 1, topic, key }]),
      };
    },
  },
  {
    id: "append", group: "Streams", title: "Append", run: "Append",
    about: "Appends a record to a durable stream. The server needs the option --streams DIRECTORY.",
    fields: [STREAM, { name: "key", label: "Key of the record", value: "" }, { name: "data", label: "Record: text or JSON", value: '{"item": 7}', kind: "text" }],
    code: ({ stream, key, data }, where) => {
      const content = dataOf(data);
      const to = `/streams/${path(stream)}${query({ key })}`;
      return {
        curl: curl(where, { to, ...bodyOf(content) }),
        javascript: javascript(where, [`const { offset } = await client.stream(${js(stream)}).append(${js(content)}${key ? `, { key: ${js(key)} }` : ""});`, "console.log(offset);"]),
        python: python(where, { to, ...pyBody(content) }, PRINT),
        rust: rust(where, [{ op: "append", id: 1, stream, data: content, ...(key && { key }) }]),
      };
    },
  },
  {
    id: "read", group: "Streams", title: "Read", run: "Read",
    about: "Reads records of a durable stream from an offset on.",
    fields: [STREAM, { name: "offset", label: "Offset", value: "0", kind: "number", required: true }],
    code: ({ stream, offset }, where) => {
      const to = `/streams/${path(stream)}${query({ from: offset })}`;
      return {
        curl: curl(where, { to }),
        javascript: javascript(where, [`const { records } = await client.stream(${js(stream)}).read(${number(offset)});`, "for (const { offset, data } of records) console.log(offset, data);"]),
        python: python(where, { to }, ["for line in response:", "    record = json.loads(line)", '    print(record["offset"], record.get("data"))']),
        rust: rust(where, [{ op: "read", id: 1, stream, partition: 0, offset: number(offset), max: 65_536 }]),
      };
    },
  },
  {
    id: "rpc", group: "Calls", title: "Call", run: "Call",
    about: "Calls a method of your application: the server passes the call to the hook rpc, whose answer is the result. The server needs the option --hooks-rpc URL.",
    fields: [{ name: "method", label: "Method", value: "price", required: true }, { ...TOPIC, label: "Topic, if the call is about one", value: "", required: false },
      { name: "data", label: "Data: text or JSON", value: '{"item": 7}', kind: "text" }],
    code: ({ method, topic, data }, where) => {
      const content = dataOf(data);
      const to = `/rpc/${path(method)}${query({ topic })}`;
      return {
        curl: curl(where, { to, ...bodyOf(content) }),
        javascript: javascript(where, [`console.log(await client.call(${js(method)}, ${js(content)}${topic ? `, { topic: ${js(topic)} }` : ""}));`]),
        python: python(where, { to, ...pyBody(content) }, PRINT),
        rust: rust(where, [{ op: "rpc", id: 1, method, ...(topic && { topic }), data: content }]),
      };
    },
  },
];
