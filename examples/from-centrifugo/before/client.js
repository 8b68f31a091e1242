// The page's part with Centrifugo.
import { Centrifuge } from "centrifuge";

export async function open({ url, getToken }, channel, { onmessage, onclose }) {
  const centrifuge = new Centrifuge(`${url.replace("http", "ws")}/connection/websocket`, { getToken });
  const subscription = centrifuge.newSubscription(`news:${channel}`);
  subscription.on("publication", ({ data }) => onmessage(data));
  centrifuge.on("disconnected", ({ reason }) => onclose(reason));
  subscription.subscribe();
  centrifuge.connect();
  await subscription.ready(10_000);
  return {
    last: async (limit) => {
      const { publications } = await subscription.history({ limit, reverse: true });
      return publications.map(({ data }) => data).reverse();
    },
    publish: (data) => subscription.publish(data),
    close: () => centrifuge.disconnect(),
  };
}
