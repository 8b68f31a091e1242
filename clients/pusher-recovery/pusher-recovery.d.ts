/** What the add-on uses of a client of pusher-js 8. */
export interface PusherClient {
  send_event(name: string, data: any, channel?: string): boolean;
  channel(name: string): { emit(name: string, data?: any): unknown } | undefined;
  user?: { emit(name: string, data?: any): unknown };
  connection: {
    state: string;
    socket_id: string;
    bind(name: string, callback: Function): unknown;
    unbind(name?: string, callback?: Function): unknown;
    emit(name: string, data?: any): unknown;
  };
}

/** Data of `sinews:recovered`, which a channel emits after it is subscribed again. */
export interface RecoveryEvent {
  /** The last event of the channel. */
  position?: string;
}

/** Data of `sinews:gap`, which a channel, or `pusher.user`, emits after it is subscribed again. */
export interface GapEvent extends RecoveryEvent {
  /** `history`: the history no longer has all missed events. `unretained`: there is no history, so events may be lost. */
  reason: 'history' | 'unretained';
}

export interface Recovery {
  /** The position of the last event of a channel. */
  position(channel: string): string | undefined;
  /** Ends the add-on: later subscriptions are plain ones. */
  stop(): void;
}

/**
 * Makes the channels of a client recover. Call it before the first subscription.
 *
 * @throws TypeError the argument is not a client of pusher-js 8.
 */
export function recover(pusher: PusherClient): Recovery;
