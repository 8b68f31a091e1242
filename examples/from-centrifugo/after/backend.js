// The backend's part with Sinews: tokens and requests.
import jwt from "jsonwebtoken";

export function backend({ url, apiKey, secret }) {
  const call = async (path, parameters) => {
    const response = await fetch(`${url}/api/v1/${path}`, {
      method: parameters ? "POST" : "GET",
      headers: { authorization: `Bearer ${apiKey}` },
      body: parameters && JSON.stringify(parameters),
    });
    const result = await response.json();
    if (!response.ok) throw new Error(`${path}: ${result.code} ${result.error}`);
    return result;
  };
  return {
    token: (user) => jwt.sign({}, secret, { subject: user, expiresIn: "10m" }),
    publish: (channel, data, key) => call("publish", { topic: `news.${channel}`, data, idempotency_key: key }),
    broadcast: (channels, data) => call("broadcast", { topics: channels.map((channel) => `news.${channel}`), data }),
    users: async (channel) => {
      const { members } = await call(`topics/news.${channel}/members`);
      return members.map(({ id }) => id);
    },
    disconnect: (user) => call("disconnect", { user, code: 4403, reason: "account closed" }),
  };
}
