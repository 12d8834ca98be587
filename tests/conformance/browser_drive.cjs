// node browser_drive.cjs PAGE CHROMIUM SCREENSHOT: opens the page from disk, does what stdin's JSON list says, prints JSON.
// Orders: {open: path, hash?: times, tab?: name, filter?: text} | {drop: {name, base64}} | {keys: true} | {connect: true}
"use strict";
const fs = require("node:fs");
const { chromium } = require("playwright-core");

const QUIET = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

async function told(page) {
  await page.waitForSelector("#result:not([hidden])");
  return page.evaluate(() => {
    const all = (selector) => [...document.querySelectorAll(selector)].map((item) => item.textContent);
    return {
      status: document.getElementById("status").textContent,
      verdict: document.querySelector(".verdict").textContent,
      kind: document.querySelector(".verdict").className,
      problems: [...document.querySelectorAll(".problems li")].map((item) =>
        [...item.querySelectorAll("p")].map((line) => line.textContent),
      ),
      facts: Object.fromEntries(
        [...document.querySelectorAll(".card dl > div")].map((item) =>
          [...item.children].map((child) => child.textContent),
        ),
      ),
      tabs: all('[role="tab"]'),
      unlabelled: [...document.querySelectorAll("input")].filter((input) => !input.labels.length).length,
      foreign: document.querySelectorAll("#result img, #result script, #result iframe").length,
    };
  });
}

async function open(page, order) {
  await page.setInputFiles("#file", order.open);
  await page.waitForFunction(
    (name) => document.getElementById("status").textContent.startsWith(name),
    order.open.split("/").at(-1),
  );
  if (order.hash) await page.getByRole("tab", { name: "Sections" }).click();
  for (let times = 0; times < (order.hash ?? 0); times += 1) {
    await page.evaluate(() => (document.getElementById("status").textContent = ""));
    await page.getByRole("button", { name: "Check all digests" }).click();
    await page.waitForFunction(() => /digest/.test(document.getElementById("status").textContent), undefined, {
      timeout: 120_000,
    });
  }
  const made = await told(page);
  if (order.hash) made.digests = await page.$$eval(".digeststate", (items) => items.map((item) => item.textContent));
  if (order.tab) {
    await page.getByRole("tab", { name: order.tab }).click();
    const panel = page.locator('[role="tabpanel"]:not([hidden])');
    if (order.filter) await panel.getByRole("searchbox").first().fill(order.filter);
    if (order.click) await panel.getByRole("button", { name: order.click }).first().click();
    await panel.locator("table").first().waitFor();
    made.rows = await panel
      .locator("table")
      .last()
      .locator("tbody tr")
      .evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
    made.text = await panel.innerText();
  }
  return made;
}

const orders = {
  open,
  async drop(page, { drop }) {
    const data = await page.evaluateHandle(({ name, base64 }) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const made = new DataTransfer();
      made.items.add(new File([bytes], name));
      return made;
    }, drop);
    await page.dispatchEvent("#drop", "drop", { dataTransfer: data });
    await page.waitForFunction((name) => document.getElementById("status").textContent.startsWith(name), drop.name);
    return told(page);
  },
  async keys(page) {
    await page.locator('[role="tab"]').first().focus();
    const seen = [];
    for (const key of ["ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"]) {
      await page.keyboard.press(key);
      seen.push(await page.evaluate(() => document.activeElement.textContent));
    }
    await page.locator("#file").focus();
    const outline = await page.$eval("#drop", (item) => getComputedStyle(item).outlineStyle);
    return { seen, outline };
  },
  connect: (page) =>
    page.evaluate(() => {
      const refused = [];
      document.addEventListener("securitypolicyviolation", (event) => refused.push(event.violatedDirective));
      const image = new Image();
      image.src = "http://127.0.0.1:9/x.png";
      const script = document.createElement("script");
      script.textContent = "window.injected = true";
      document.body.append(script);
      return fetch("http://127.0.0.1:9/")
        .then(
          () => "sent",
          () => "refused",
        )
        .then(
          (fetched) =>
            new Promise((done) =>
              setTimeout(
                () => done({ fetched, refused: [...new Set(refused)].sort(), injected: window.injected === true }),
                200,
              ),
            ),
        );
    }),
};

async function main([file, executablePath, screenshot]) {
  const browser = await chromium.launch({ executablePath, args: QUIET });
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.setDefaultTimeout(60_000);
  const faults = [];
  const requests = [];
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("request", (request) => requests.push(request.url().split(":")[0]));
  await page.goto(`file://${file}`);
  const answers = [];
  for (const order of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const name = Object.keys(order).find((key) => key in orders);
    if (name === "connect") answers.push({ faults: [...faults], requests: [...new Set(requests)] });
    answers.push(await orders[name](page, order));
  }
  await page.screenshot({ path: screenshot, fullPage: true });
  await browser.close();
  process.stdout.write(JSON.stringify(answers));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.stack);
  process.exit(1);
});
