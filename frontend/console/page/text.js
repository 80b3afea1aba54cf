// Numbers, times and texts as people read them.

const numbers = new Intl.NumberFormat("en");
const rates = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const times = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const count = (value) => (value === null || value === undefined ? "–" : numbers.format(value));

export const rate = (value) => rates.format(value);

/** A part of one, in percent. */
export const percent = (value) => `${rates.format(value * 100)}%`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit += 1;
  }
  return `${rates.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** An amount of money, given as a decimal number. */
export function money(amount, currency) {
  const digits = Math.abs(Number(amount)) < 1 ? 4 : 2;
  return new Intl.NumberFormat("en", { style: "currency", currency, maximumFractionDigits: digits }).format(amount);
}

/** A month such as 2026-11, in words. */
export const month = (text) => new Date(`${text}-01T00:00Z`).toLocaleDateString("en", { month: "long", year: "numeric", timeZone: "UTC" });

/** A length of time: the two largest units. */
export function duration(seconds) {
  const units = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.floor(seconds);
  const parts = [];
  for (const [unit, length] of units) {
    if (left >= length || (unit === "s" && !parts.length)) parts.push(`${Math.floor(left / length)} ${unit}`);
    left %= length;
  }
  return parts.slice(0, 2).join(" ");
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** The time of a day, in the viewer's zone. */
export const clockTime = (seconds) => clock.format(new Date(seconds * 1000));

/** A time in the viewer's zone. */
export const localTime = (seconds) => times.format(new Date(seconds * 1000));

export const utcTime = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** The text with names instead of characters that cannot be seen, or that reorder what is beside them. */
export const visible = (text) =>
  text.replace(HIDDEN, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

const DEPTH_MAX = 100;

/** The text as JSON with indents; null if it is none, or so deeply nested that the indents would be most of it. */
export function asJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/** Valid JSON with indents.  Numbers and strings stay as they are written: reading them would round large numbers. */
function indented(text) {
  let depth = 0, deepest = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const found = text
    .replace(/"(?:[^"\\]|\\.)*"|[^\s"[\]{},:]+|[[\]{},:]|\s+/g, (part) => {
      if (/^\s/.test(part) || deepest > DEPTH_MAX) return "";
      if (part === "{" || part === "[") {
        depth += 1;
        deepest = Math.max(deepest, depth);
        return part + line();
      }
      if (part === "}" || part === "]") {
        depth -= 1;
        return line() + part;
      }
      return part === "," ? part + line() : part === ":" ? ": " : part;
    })
    .replace(/([[{])\s+([\]}])/g, "$1$2");
  return deepest > DEPTH_MAX ? null : found;
}

/** The text as XML with a line for each element; null if its tags do not match, or are deeply nested. */
export function asXml(text) {
  if (!/^\s*</.test(text)) return null;
  const open = [], lines = [];
  let closing = false; // the last line is an end tag, or an element that is complete
  for (const part of text.match(/<!--[^]*?-->|<!\[CDATA\[[^]*?\]\]>|<\?[^]*?\?>|<[^<>]*>|[^<]+/g) || []) {
    const name = /^<(\/?)([^\s\/>!?]+)[^>]*?(\/?)>$/.exec(part);
    if (name && name[1]) {
      if (open.pop() !== name[2]) return null;
      if (closing) lines.push("  ".repeat(open.length) + part);
      else lines[lines.length - 1] += part;
      closing = true;
    } else if (name || part.startsWith("<")) {
      lines.push("  ".repeat(open.length) + part);
      closing = !name || Boolean(name[3]);
      if (name && !name[3]) open.push(name[2]);
      if (open.length > DEPTH_MAX) return null;
    } else if (part.trim()) {
      if (closing || !lines.length) lines.push("  ".repeat(open.length) + part.trim());
      else lines[lines.length - 1] += part.trim();
    }
  }
  return open.length || lines.length < 2 ? null : lines.join("\n");
}

/** Bytes of a base64 text as a dump; null if it is none. */
export function asHex(text) {
  const clean = text.replace(/\s/g, "");
  if (clean.length < 8 || clean.length % 4 || !/^[A-Za-z0-9+/]+={0,2}$/.test(clean)) return null;
  const content = atob(clean);
  const lines = [];
  for (let at = 0; at < content.length; at += 16) {
    const part = content.slice(at, at + 16);
    const codes = Array.from(part, (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    const letters = part.replace(/[^\x20-\x7e]/g, ".");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
