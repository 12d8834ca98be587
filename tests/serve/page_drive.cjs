// node page_drive.cjs URL CHROMIUM SCREENSHOT: talks to the page as a person would, and prints what is there as JSON.
"use strict";
const { chromium } = require("playwright-core");

const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];

async function say(page, text) {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
}

async function done(page) {
  await page.waitForFunction(() => !document.getElementById("send").hidden && document.querySelector(".assistant .tools"));
}

(async () => {
  const [url, executablePath, screenshot] = process.argv.slice(2);
  const browser = await chromium.launch({ executablePath, args: QUIET });
  const page = await browser.newPage({ viewport: { width: 900, height: 700 } });
  const asked = [];
  const errors = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("about").textContent.includes("context"));
  const about = await page.textContent("#about");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Seed").fill("3");
  await page.getByLabel("Most tokens").fill("8");
  await page.getByRole("button", { name: "Close" }).click();
  await say(page, "hello <img src=x onerror=alert(1)>");
  await done(page);
  const texts = () => page.$$eval("#talk .text", (items) => items.map((item) => item.textContent));
  const first = await texts();
  const note = await page.textContent(".assistant .tools");
  await page.getByRole("button", { name: "Regenerate" }).click();
  await done(page);
  const again = await texts();
  await page.screenshot({ path: screenshot });
  await page.getByRole("button", { name: "Edit" }).click();
  const edited = await page.inputValue("#prompt");
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Most tokens").fill("150");
  await page.getByRole("button", { name: "Close" }).click();
  await say(page, "a long one");
  await page.keyboard.press("Escape");
  await done(page);
  const stopped = await page.textContent(".assistant .tools");
  const marked = await page.evaluate(() => markdown("# A\n\n- *b* `c<d`\n\n```js\n<x>\n```\n\n|a|b|\n|-|-|\n|1|**2**|\n\n[n](https://e.x/?a=\"b)"));
  const foreign = await page.evaluate(() => document.querySelectorAll("#talk img, #talk script").length);
  const unlabelled = await page.evaluate(
    () => [...document.querySelectorAll("input, textarea, select")].filter((item) => !item.labels.length).length,
  );
  console.log(JSON.stringify({ about, first, again, note, edited, stopped, marked, foreign, unlabelled, asked, errors }));
  await browser.close();
})();
