// The backend's part with Centrifugo: tokens and requests.
import jwt from "jsonwebtoken";

export function backend({ url, apiKey, secret }) {
  const call = async (method, parameters) => {
    const response = await fetch(`${url}/api/${method}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-api-key": apiKey },
      body: JSON.stringify(parameters),
    });
    const { error, result } = await response.json();
    if (error) throw new Error(`${method}: ${error.code} ${error.message}`);
    return result;
  };
  return {
    token: (user) => jwt.sign({}, secret, { subject: user, expiresIn: "10m" }),
    publish: (channel, data, key) => call("publish", { channel: `news:${channel}`, data, idempotency_key: key }),
    broadcast: (channels, data) => call("broadcast", { channels: channels.map((channel) => `news:${channel}`), data }),
    users: async (channel) => {
      const { presence } = await call("presence", { channel: `news:${channel}` });
      return [...new Set(Object.values(presence).map(({ user }) => user))].sort();
    },
    disconnect: (user) => call("disconnect", { user, disconnect: { code: 4501, reason: "account closed" } }),
  };
}
