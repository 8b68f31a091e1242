/** Types of core.js: the client without streams and HTTP. */
import { CoreClient, type CoreOptions } from "./sinews.js";

export { CoreClient as Client, SinewsError } from "./sinews.js";
export type {
  CoreOptions as Options, Data, Gap, History, HistoryRange, Json, KeyConditions, KeyGap, KeyWritten, ListedMember, Member, Membership,
  Message, PatternPosition, Payload, Position, PublishOptions, RequestOptions, State, StateOptions, Status, StatusChange, StatusEvent,
  StatusListener, SubscribeOptions, Subscription, SubscriptionAck,
} from "./sinews.js";

/** Connects, and reconnects until `close`. */
export function connect(url?: string | URL, options?: CoreOptions): CoreClient;
