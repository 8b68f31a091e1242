/** The highest bid of a lot, and a message about each accepted one. */
export interface Bid {
  amount: number;
  by: string;
}

/** What a page learns of its user. */
export interface Session {
  user: string;
  url: string;
}

export const LOT = "auction.lamp";
export const FIRST_BID: Bid = { amount: 100, by: "" };
