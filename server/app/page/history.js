// What the page has seen of the server's counters in the last minutes.

const KEPT = 200; // seconds: two minutes to draw, and a minute before them for percentiles
export const SHOWN = 120;
export const BIN = 4;
const WINDOW = 60;

export class History {
  constructor() {
    this.samples = [];
  }

  /** Add a reading. at: seconds on any steady clock. */
  add(at, figures) {
    const last = this.samples.at(-1);
    if (last && total(figures) < total(last.figures)) this.samples = []; // the server has started again
    this.samples.push({ at, figures });
    while (this.samples[0].at < at - KEPT) this.samples.shift();
  }

  get now() {
    return this.samples.at(-1)?.at ?? 0;
  }

  /** A level over time: pairs of seconds (0 is now, before it is negative) and what read gives. */
  levels(read) {
    return this.samples.filter(({ at }) => at >= this.now - SHOWN).map(({ at, figures }) => [at - this.now, read(figures)]);
  }

  /** How much counters have grown in each bin, the oldest first: a list for each of the values that read gives. */
  growth(read) {
    const bins = Array.from({ length: SHOWN / BIN }, () => read(this.samples.at(-1).figures).map(() => 0));
    const end = Math.ceil(this.now / BIN) * BIN; // bins stay where they are while time goes on
    for (let index = 1; index < this.samples.length; index += 1) {
      const bin = bins.length - 1 - Math.floor((end - this.samples[index].at) / BIN);
      if (bin < 0) continue;
      const [before, after] = [read(this.samples[index - 1].figures), read(this.samples[index].figures)];
      after.forEach((value, series) => (bins[bin][series] += value - (before[series] ?? 0)));
    }
    return bins;
  }

  /** Counters' growth in a second, over the last ones. */
  rate(read, over = 5) {
    const last = this.samples.at(-1);
    const first = this.samples.find(({ at }) => at >= last.at - over);
    return last.at > first.at ? (read(last.figures) - read(first.figures)) / (last.at - first.at) : 0;
  }

  /** Shares of a histogram over time, each of the minute before it: pairs of seconds and a list of times or null. */
  quantiles(read, shares) {
    const found = [];
    let early = 0;
    for (const { at, figures } of this.samples) {
      while (this.samples[early].at < at - WINDOW) early += 1;
      if (at < this.now - SHOWN) continue;
      const [now, then] = [read(figures), read(this.samples[early].figures)];
      const counts = now.counts.map((value, index) => value - (then.counts[index] ?? 0));
      found.push([at - this.now, shares.map((share) => quantile(now.bounds, counts, share))]);
    }
    return found;
  }
}

/** As Prometheus estimates it: within a bucket, times are spread evenly. */
function quantile(bounds, counts, share) {
  const rank = share * counts.reduce((sum, value) => sum + value, 0);
  if (!rank) return null;
  let [below, start] = [0, 0];
  for (const [index, end] of bounds.entries()) {
    if (counts[index] && below + counts[index] >= rank) return start + ((end - start) * (rank - below)) / counts[index];
    below += counts[index];
    start = end;
  }
  return start;
}

const total = (figures) => Object.values(figures.by_scale).reduce((sum, { requests }) => sum + requests, 0);
