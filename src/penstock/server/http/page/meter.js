// Rates from successive reads: the API has counts, and two of them with the time between them are a rate.

const WINDOW_MS = 9_000;
// Two reads that are closer than this say little about a rate: somebody went to another page.
const APART_MS = 1_000;
const KEPT_MS = 180_000;
const HOT = 3;

class Counter {
  #samples = [];

  /** How much it has grown since the last read; null if there was none lately. */
  add(at, value) {
    const last = this.#samples.at(-1);
    // It was made anew, or a group was moved back.
    if (last && value < last.value) this.#samples = [];
    const grown = this.#samples.length ? value - last.value : null;
    this.#samples.push({ at, value });
    while (this.#samples.length > 2 && at - this.#samples[0].at > WINDOW_MS) this.#samples.shift();
    return grown;
  }

  get rate() {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    return this.#samples.length < 2 ? null : ((last.value - first.value) * 1000) / (last.at - first.at);
  }
}

export class Meter {
  #counters = new Map();
  #lastAt = null;
  /** { at, published, done } a second; null where nobody looked. */
  points = [];

  /** Nobody looks for a while: what comes then is not compared with what was. */
  pause() {
    this.#counters.clear();
    this.#lastAt = null;
  }

  add(topics, groups, at) {
    if (this.#lastAt !== null && at - this.#lastAt < APART_MS) return;
    const ends = new Map();
    let published = null;
    let done = null;
    for (const topic of topics) {
      const end = topic.partitions.reduce((sum, part) => sum + part.end_offset, 0);
      ends.set(topic.name, end);
      for (const part of topic.partitions) this.#count(`p ${topic.name} ${part.number}`, at, part.end_offset);
      if (topic.unknown.length) {
        // When it has a leader again, all of it would seem to be new.
        this.#counters.delete(`t ${topic.name}`);
        continue;
      }
      const grown = this.#count(`t ${topic.name}`, at, end);
      if (grown !== null && !topic.name.endsWith(".dlq")) published = (published ?? 0) + grown;
    }
    for (const group of groups) {
      if (isPartial(group)) {
        this.#counters.delete(`g ${group.name}`);
        continue;
      }
      // What is published and not behind has been dealt with.
      const dealt = Object.entries(group.lag).reduce(
        (sum, [topic, lags]) => sum + (ends.get(topic) ?? 0) - total(lags),
        0,
      );
      const grown = this.#count(`g ${group.name}`, at, dealt);
      if (grown !== null) done = (done ?? 0) + grown;
    }
    this.#point(at, published, done);
  }

  #count(name, at, value) {
    if (!this.#counters.has(name)) this.#counters.set(name, new Counter());
    return this.#counters.get(name).add(at, value);
  }

  #point(at, published, done) {
    const seconds = this.#lastAt === null ? null : (at - this.#lastAt) / 1000;
    const per = (n) => (n === null || seconds === null ? null : n / seconds);
    this.#lastAt = at;
    this.points.push({ at, published: per(published), done: per(done) });
    while (at - this.points[0].at > KEPT_MS) this.points.shift();
  }

  topic = (name) => this.#counters.get(`t ${name}`)?.rate ?? null;
  partition = (name, number) => this.#counters.get(`p ${name} ${number}`)?.rate ?? null;
  group = (name) => this.#counters.get(`g ${name}`)?.rate ?? null;

  /** The partitions that get three times their share. */
  hot(topic) {
    const average = (this.topic(topic.name) ?? 0) / topic.partitions.length;
    const isHot = (part) => average > 0 && this.partition(topic.name, part.number) >= HOT * average * 0.999;
    return new Set(topic.partitions.filter(isHot).map((part) => part.number));
  }
}

/** Nobody serves some of its partitions at the moment. */
export const isPartial = (group) => Object.values(group.lag).flat().includes(null);
export const total = (numbers) => numbers.reduce((sum, n) => sum + n, 0);
