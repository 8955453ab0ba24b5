/**
 * In which order the ranks of a pipeline work: torch's schedules with one stage a rank
 * (torch 2.13, torch/distributed/pipelining/schedules.py, ScheduleGPipe and Schedule1F1B).
 */

const ORDERS = {
  GPipe: (rank, degree, batches) => [...forwards(0, batches), ...backwards(0, batches)],
  "1F1B": (rank, degree, batches) => {
    const warm = Math.min(batches, degree - rank);
    const order = forwards(0, warm);
    for (let at = 0; at < batches; at += 1) {
      order.push(["B", at]);
      if (warm + at < batches) order.push(["F", warm + at]);
    }
    return order;
  },
};
const forwards = (first, last) => Array.from({ length: last - first }, (_, at) => ["F", first + at]);
const backwards = (first, last) => forwards(first, last).map(([, at]) => ["B", at]);

/** `[["F" or "B", micro-batch], ...]` of each rank; null for a schedule whose order is not known here. */
export function ordersOf(schedule, degree, batches) {
  const order = ORDERS[schedule];
  return order ? Array.from({ length: degree }, (_, rank) => order(rank, degree, batches)) : null;
}

/** How many micro-batches a rank holds at once, at most. */
export function mostHeld(order) {
  let [now, most] = [0, 0];
  for (const [action] of order) {
    now += action === "F" ? 1 : -1;
    most = Math.max(most, now);
  }
  return most;
}

/**
 * When each action begins where a forward takes `forward` and a backward `backward`: `{actions, end}`, actions as
 * `{rank, action, batch, begin, end}`. A forward waits for that of the rank before, a backward for that of the next.
 */
export function timesOf(orders, forward = 1, backward = 2) {
  const done = new Map();
  const key = (rank, action, batch) => `${rank} ${action} ${batch}`;
  const [next, free] = [orders.map(() => 0), orders.map(() => 0)];
  const actions = [];
  for (let moved = true; moved;) {
    moved = false;
    orders.forEach((order, rank) => {
      while (next[rank] < order.length) {
        const [action, batch] = order[next[rank]];
        const before = action === "F" ? rank - 1 : rank + 1;
        const waits = before >= 0 && before < orders.length;
        const ready = waits ? done.get(key(before, action, batch)) : 0;
        if (ready === undefined) break;
        const begin = Math.max(free[rank], ready);
        const end = begin + (action === "F" ? forward : backward);
        done.set(key(rank, action, batch), end);
        actions.push({ rank, action, batch, begin, end });
        [free[rank], next[rank], moved] = [end, next[rank] + 1, true];
      }
    });
  }
  return { actions, end: Math.max(...free) };
}
