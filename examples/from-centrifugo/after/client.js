// The page's part with Sinews.
import { connect } from "@sinews/client";

export async function open({ url, user, getToken }, channel, { onmessage, onclose }) {
  const topic = `news.${channel}`;
  const client = connect(`${url}/ws`, {
    token: getToken,
    onstatus: ({ status, reason }) => { if (status === "closed") onclose(reason); },
  });
  const subscription = client.subscribe(topic, ({ data }) => onmessage(data));
  await Promise.all([subscription.ready, client.join(topic, { id: user })]); // presence lists the clients that join
  return {
    last: async (limit) => (await client.history(topic, limit)).map(({ data }) => data),
    publish: (data) => client.publish(topic, data),
    close: () => client.close(),
  };
}
