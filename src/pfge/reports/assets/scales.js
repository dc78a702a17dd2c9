// Numbers to places and to text.

/** Return round numbers, a handful, from the first at or above low to the last at or below high. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step || 0); // never -0
  return { step, found };
}

/** Return a tick as text, with as many digits as the step between ticks needs. */
function tickText(value, step) {
  if (value !== 0 && Math.abs(step) < 1e-4) return value.toExponential(0);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Return a number of a tooltip: five digits are more than any of them is good for. */
function numberText(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(5)));
}

/** Return the lowest and the highest of values, apart even where there is only one. */
function extent(values, margin) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (high - low < 1e-12) {
    const room = Math.abs(high) * 0.02 || 0.5;
    return [low - room, high + room];
  }
  const room = (high - low) * margin;
  return [low - room, high + room];
}

/** Return a function from numbers to places between start and end. */
function scale([low, high], [start, end], isLog) {
  const share = isLog
    ? (value) => Math.log(value / low) / Math.log(high / low)
    : (value) => (value - low) / (high - low);
  return (value) => start + share(value) * (end - start);
}

/** Return the x axis' bounds: a little room at both sides, more for names, as a ratio on a log axis. */
function boundsOfX(values, isLog, isNamed) {
  if (!isLog) return extent(values, isNamed ? 0.08 : 0.02);
  const [low, high] = extent(values.map(Math.log), 0.06);
  return [Math.exp(low), Math.exp(high)];
}
