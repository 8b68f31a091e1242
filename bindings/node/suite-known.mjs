// Cases in the suite of ws that fail, with their reasons.

export const KNOWN = new Map([]);
