/** The client without streams and without HTTP, for bundlers, which then leave both away. Types: core.d.ts. */
import { CoreClient, SinewsError } from "./sinews.js";

export { CoreClient as Client, SinewsError };

/** Connects, and reconnects until `close`. */
export function connect(url, options) {
  return new CoreClient(url, options);
}
