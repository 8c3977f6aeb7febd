// Numbers, sizes and times, as people read them.

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => plain.format(n);
export const some = (n, one, many = `${one}s`) => `${plain.format(n)} ${n === 1 ? one : many}`;

/** What is known of something of which a part is not. */
export const known = (text, isPart) => (isPart ? `${text} + ?` : text);

export function rate(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0/s";
  if (perSecond < 10) return `${perSecond.toFixed(1)}/s`;
  return perSecond < 10_000 ? `${plain.format(Math.round(perSecond))}/s` : `${short.format(perSecond)}/s`;
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) {
    bytes /= 1024;
    i += 1;
  }
  return `${i === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}

/** The API has microseconds; a Date has milliseconds, and that will do. */
export const time = (text) => new Date(text);

export function clock(text) {
  const when = time(text);
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString("sv")} `;
  return `${day}${when.toLocaleTimeString("en-GB")}.${String(when.getMilliseconds()).padStart(3, "0")}`;
}

/** "in 3 min", "12 s ago". */
export function fromNow(text, now = Date.now()) {
  const ms = time(text) - now;
  return ms > 0 ? `in ${lasting(ms)}` : `${lasting(-ms)} ago`;
}

export function lasting(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 100) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${count(Math.round(s / 86_400))} days`;
}

/** Between two times of the API, microseconds and all. */
export function between(from, to) {
  const micros = (text) => Number(text.match(/\.(\d{6})/)?.[1] ?? 0) % 1000;
  return time(to) - time(from) + (micros(to) - micros(from)) / 1000;
}

export const isLetters = (topic) => topic.endsWith(".dlq");

/** The value of a message that was asked for as text, in one line. */
export function brief(message, length = 120) {
  if (message.text === undefined)
    return message.value === null ? "tombstone" : `${bytesIn(message.value)} that are not text`;
  const line = message.text.replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length)}…` : line || "empty";
}

export const bytesIn = (base64) => some((base64.length / 4) * 3 - (base64.match(/=*$/)?.[0].length ?? 0), "byte");

export const keyIn = (one) => one.key ?? (one.key_base64 ? `base64 ${one.key_base64}` : "–");
