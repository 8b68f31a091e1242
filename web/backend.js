// The calls of the HTTP API for backends, from its document: a form and programs for each operation.
import { js, py, sh } from "./calls.js";

const KEY = "SINEWS_API_KEY";

/** The document marks code in descriptions. */
const plain = (text) => text.replaceAll("`", "");

/** The path of a request with the values of its fields. */
function target({ path, parameters }, values) {
  const given = parameters.filter(({ name }) => values[name]);
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? ""));
  const query = given.filter((parameter) => parameter.in === "query").map(({ name }) => [name, values[name]]);
  return query.length ? `${filled}?${new URLSearchParams(query)}` : filled;
}

const headersOf = ({ parameters }, values) => Object.fromEntries(parameters
  .filter((parameter) => parameter.in === "header" && values[parameter.name]).map(({ name }) => [name, values[name]]));

/** The request of an operation with the values of its fields. */
export function requestOf(operation, values) {
  return { method: operation.method, path: target(operation, values), headers: headersOf(operation, values),
    body: operation.body ? values.body : undefined };
}

function code(operation, values, { origin }) {
  const { method, path, headers, body } = requestOf(operation, values);
  const url = origin + path;
  const added = Object.entries(headers);
  const curl = ["curl", operation.isStream && "-N", method !== "GET" && `-X ${method}`, `-H "Authorization: Bearer $${KEY}"`,
    ...added.map(([name, value]) => `-H ${sh(`${name}: ${value}`)}`), body !== undefined && `--data-raw ${sh(body)}`, sh(url)];
  const options = [`  method: ${js(method)},`, `  headers: { ${[`Authorization: \`Bearer \${process.env.${KEY}}\``,
    ...added.map(([name, value]) => `${js(name)}: ${js(value)}`)].join(", ")} },`, ...(body === undefined ? [] : [`  body: ${js(body)},`])];
  const python = ["import os, urllib.request", "", `request = urllib.request.Request(${py(url)}, method=${py(method)}${body === undefined ? "" : `, data=${py(body)}.encode()`})`,
    `request.add_header("Authorization", "Bearer " + os.environ["${KEY}"])`,
    ...added.map(([name, value]) => `request.add_header(${py(name)}, ${py(value)})`), "with urllib.request.urlopen(request) as response:"];
  return {
    curl: curl.filter(Boolean).join(" "),
    javascript: [`const response = await fetch(${js(url)}, {`, ...options, "});", ...(operation.isStream
      ? ["for await (const part of response.body.pipeThrough(new TextDecoderStream())) console.log(part);"]
      : ["console.log(response.status, await response.text());"])].join("\n"),
    python: [...python, ...(operation.isStream ? ["    for line in response:", "        print(line.decode(), end=\"\", flush=True)"]
      : ["    print(response.read().decode())"])].join("\n"),
  };
}

function callOf(path, method, described) {
  const parameters = described.parameters ?? [];
  const content = described.requestBody?.content["application/json"];
  const isStream = "text/event-stream" in described.responses["200"].content;
  const operation = { method: method.toUpperCase(), path, parameters, body: Boolean(content), isStream };
  const fields = parameters.map(({ name, required, description, example }) =>
    ({ name, label: `${name}: ${plain(description)}`, value: required ? example ?? "" : "", required }));
  if (content) fields.push({ name: "body", label: "Body, as JSON", value: JSON.stringify(content.example, null, 1), kind: "text" });
  return {
    id: described.operationId, group: "Backend", title: described.summary, run: isStream ? "Follow" : "Send", operation, fields,
    about: `${operation.method} ${path}. ${plain(described.description ?? "Needs no key.")}`,
    code: (values, where) => code(operation, values, where),
  };
}

/** The operations of this server. */
export async function backendCalls() {
  const response = await fetch("/api/v1/openapi.json");
  if (!response.ok) return [];
  const { paths } = await response.json();
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => callOf(path, method, described)));
}
