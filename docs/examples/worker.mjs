// A worker for a queue over HTTP, for Node 18 or newer, without packages.
//
//     JOBS_URL=https://example.com/api/jobs JOBS_TOKEN=dj_... node worker.mjs QUEUE ./handler.mjs
//
// handler.mjs: `export default async (job, signal) => output`. What it throws is a failure. `signal` is aborted when the attempt
// is lost (cancelled, timed out): stop then. CONCURRENCY: jobs at once (1). WAIT: seconds of one long poll (10).
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const { JOBS_URL, JOBS_TOKEN, CONCURRENCY = "1", WAIT = "10" } = process.env;
const [queue, path] = process.argv.slice(2);
const { default: handler } = await import(pathToFileURL(resolve(path)));
let stopping = false;
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => (stopping = true)); // what runs may end, and so may the poll

// Returns { status, body }; status 0 if there was no answer.
async function call(method, path, { body, token, seconds = 30 } = {}) {
  const headers = { Authorization: `Bearer ${JOBS_TOKEN}`, "Content-Type": "application/json" };
  if (token) headers["X-Job-Token"] = token;
  try {
    const answer = await fetch(`${JOBS_URL}/${path}`, { method, headers, body, signal: AbortSignal.timeout(seconds * 1000) });
    const text = await answer.text();
    return { status: answer.status, body: text, json: () => JSON.parse(text) };
  } catch (error) {
    return { status: 0, body: String(error.cause ?? error) };
  }
}

const isAway = ({ status }) => status === 0 || status === 429 || status >= 500;
const pauses = (next, last) => () => sleep((next = Math.min(next * 2, last)) * (500 + 500 * Math.random())); // with jitter

function seconds(duration) { // "1m30s" -> 90
  const units = { w: 604800, d: 86400, h: 3600, m: 60, s: 1 };
  return [...(duration ?? "").matchAll(/([\d.]+)\s*([wdhms])/g)].reduce((sum, [, number, unit]) => sum + number * units[unit], 0);
}

async function beat(job, lost, ended) { // signs of life at a third of the shortest limit, and often enough to notice a cancel
  const limits = [seconds(job.heartbeat_timeout), seconds(job.timeout)].filter(Boolean);
  const every = Math.min(10, ...limits.map((limit) => limit / 3));
  while (!ended.aborted) {
    await sleep(every * 1000, null, { signal: ended }).catch(() => {});
    if (ended.aborted) return;
    const { status } = await call("PUT", `jobs/${job.id}/heartbeat/`, { token: job.token, seconds: Math.max(1, every) });
    if (status === 404 || status === 409) return lost.abort();
  }
}

async function finish(job, report) { // for as long as the server is away
  const pause = pauses(0.25, 15), body = JSON.stringify(report);
  for (let tries = 1; ; tries++) {
    const answer = await call("PATCH", `jobs/${job.id}/`, { token: job.token, body });
    if (!isAway(answer) || tries === 100) return answer;
    await pause();
  }
}

async function run(job) {
  const lost = new AbortController(), ended = new AbortController();
  const heart = beat(job, lost, ended.signal);
  const said = (error) => ({ class: error?.name, message: String(error?.message ?? error), traceback: error?.stack });
  const failed = (error, final) => ({ status: "failed", final, error: said(error) });
  let report;
  try {
    report = { status: "succeeded", output: await handler(job, lost.signal) };
  } catch (error) {
    report = failed(error);
  }
  try {
    JSON.stringify(report);
  } catch (error) {
    report = failed(error, true); // the next attempt would return the same
  }
  ended.abort();
  await heart;
  if (lost.signal.aborted) return;
  let answer = await finish(job, report);
  if (answer.status === 400 || answer.status === 413) answer = await finish(job, failed(new TypeError(answer.body), true));
  if (answer.status !== 204) console.error(`job ${job.id}: its end was not taken: ${answer.body}`);
}

async function work() {
  for (let pause = pauses(0.25, 30); !stopping; ) {
    const body = JSON.stringify({ limit: 1, wait: Number(WAIT) });
    const answer = await call("POST", `queues/${queue}/claim/`, { body, seconds: Number(WAIT) + 30 });
    if (isAway(answer)) await pause();
    else if (answer.status === 204) await sleep(500 * Math.random()); // nothing came, or the server lets nobody wait
    else if (answer.status !== 200) throw new Error(answer.body);
    else await run(answer.json().jobs[0]).finally(() => (pause = pauses(0.25, 30)));
  }
}

await Promise.all(Array.from({ length: Number(CONCURRENCY) }, work));
