/* Three small things, each of which the page can do without: live progress, the drawing button, the filter of countries. */
"use strict";

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function followImport(box) {
  let before = null;
  let seen = box.hasAttribute("data-running");
  for (;;) {
    await wait(seen ? 1 : 3);
    if (document.hidden) continue; // a tab in the background asks nothing
    let now;
    try {
      now = await (await fetch(box.dataset.url)).json();
    } catch {
      $("rate").textContent = "the site does not answer";
      continue;
    }
    if (now.parts > Number(box.dataset.parts)) return location.reload();
    const time = performance.now() / 1000;
    $("done").textContent = number.format(now.done);
    $("total").textContent = number.format(now.total);
    $("bar").max = now.total || 1;
    $("bar").value = now.done;
    if (now.running) {
      if (now.cards) $("cards").innerHTML = now.cards; // rendered, and escaped, by the same template as the page
      $("latest-title").textContent = "Described just now";
      if (before) $("rate").textContent = `${number.format(Math.round((now.done - before.done) / (time - before.time)))} jobs a second`;
    } else if (seen) {
      $("rate").textContent = "one job each, all done";
    }
    before = { done: now.done, time };
    seen = now.running;
  }
}

async function draw(form) {
  const button = form.querySelector("button");
  const bar = $("draw-progress");
  const status = $("draw-status");
  button.disabled = true;
  bar.hidden = false;
  bar.removeAttribute("value"); // waiting: no number yet
  try {
    const answer = await fetch(form.action, { method: "POST", body: new FormData(form), headers: { Accept: "application/json" } });
    const { watch } = await answer.json();
    for (let job = {}; !job.finished; ) {
      await wait(0.25);
      job = await (await fetch(watch)).json();
      status.textContent = `The job is ${job.status.toLowerCase()}.`;
      if (job.progress?.total) bar.value = job.progress.done / job.progress.total;
      if (job.finished) {
        bar.value = 1;
        $("world").src = job.image;
        $("world").hidden = false;
        $("no-world")?.remove();
      }
    }
  } catch {
    status.textContent = "The site does not answer.";
  }
  button.disabled = false;
  bar.hidden = true;
}

if ($("import")) followImport($("import"));
$("draw")?.addEventListener("submit", (event) => {
  event.preventDefault();
  draw(event.currentTarget);
});
$("filter")?.addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const item of document.querySelectorAll(".countries li")) item.hidden = !item.textContent.toLowerCase().includes(wanted);
  for (const part of document.querySelectorAll(".continent")) part.hidden = !part.querySelector("li:not([hidden])");
});
