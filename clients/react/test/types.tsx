// Compiled, not run.
import { connect } from "@sinews/client";
import { connect as connectCore, type Client as Core } from "@sinews/client/core";
import { Sinews, useClient, useKeys, useMembers, useStatus, useStream, useTopic } from "@sinews/react";

interface Info { name: string }
interface Price { amount: number }

function Room() {
  const { messages, gap, error } = useTopic<{ text: string }>("chat.room", { last: 20 });
  const { keys } = useKeys<Price>("prices", { filter: "eur.>", interval: 100 });
  const { members } = useMembers<Info>("chat.room", { id: "anna", info: { name: "Anna" } });
  const { records } = useStream<Price>("orders", { from: "earliest" });
  const { status, delay } = useStatus();
  const client = useClient();
  const core = useClient<Core>();
  return <p onClick={() => void client().stream("orders").append({ amount: core().queued })}>
    {messages[0]?.data.text}{keys.get("a")?.amount.toFixed()}{members.get("anna")?.name}{records[0]?.data.amount}{status}{delay}{gap?.reason}{error?.code}
  </p>;
}

console.log(<Sinews connect={() => connect("/ws")}><Room /></Sinews>, <Sinews client={connectCore("/ws")} />);
// @ts-expect-error: one of client and connect.
console.log(<Sinews><Room /></Sinews>);
