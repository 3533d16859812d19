// What both sides of the extension know of a gateway: its address is https or this machine, and how much it takes.

import { T } from "./words.js";

const HERE = ["127.0.0.1", "localhost"];
/** Characters that are scored, and that an example of a profile has. */
export const MOST = { scored: 50000, example: 8000 };

/** The base of a gateway's routes, out of what somebody typed. */
export function addressOf(text) {
  const url = URL.parse(text.trim());
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) throw new Error(T.address);
  if (url.protocol !== "https:" && !HERE.includes(url.hostname)) throw new Error(T.insecure);
  return url.origin + url.pathname.replace(/\/+(v1\/*)?$/, "");
}

/** The permission to reach it, and nothing else. */
export const permissionFor = (url) => ({ origins: [`${new URL(url).origin}/*`] });
