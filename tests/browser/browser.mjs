// A headless Chromium, driven line by line: a JSON object in, a JSON object out. `driver.py` is the other end.
//
// The browser's binary, the few libraries it needs and a font are in a package, unpacked below node_modules: a machine
// needs Node.js and nothing else. PUPPETEER_EXECUTABLE_PATH names another browser, on systems that the package has none for.
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const unpacked = join(dirname(fileURLToPath(import.meta.url)), "node_modules", ".chromium");
mkdirSync(unpacked, { recursive: true });
// The package unpacks into the temporary folder and trusts what lies there; this one is nobody else's.
process.env.TMPDIR = unpacked;
// Says that the machine may lack libnss3, so that the package's own is used.
process.env.AWS_LAMBDA_JS_RUNTIME = "nodejs20.x";
const fonts = join(unpacked, "fonts-of-both.conf");
writeFileSync(
  fonts,
  `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>` +
    `<include ignore_missing="yes">/etc/fonts/fonts.conf</include>` +
    `<dir>${join(unpacked, "fonts")}</dir><cachedir>${join(unpacked, "font-cache")}</cachedir></fontconfig>`,
);
process.env.FONTCONFIG_FILE = fonts;

const { default: puppeteer } = await import("puppeteer-core");
async function launched() {
  const own = process.env.PUPPETEER_EXECUTABLE_PATH;
  // A container's root has no sandbox; the pages are our own.
  if (own) return puppeteer.launch({ executablePath: own, args: ["--no-sandbox"] });
  const { default: chromium } = await import("@sparticuz/chromium");
  chromium.setGraphicsMode = false;
  const executablePath = await chromium.executablePath();
  return puppeteer.launch({ executablePath, args: ["--no-sandbox", "--font-render-hinting=none"], headless: "shell" });
}

const browser = await launched();
let page = null;
let seen = {};

// A page of its own for every `open`: nothing is left of the one before.
async function open({ url, width, height, dark, scripts }) {
  if (page) await page.browserContext().close();
  const context = await browser.createBrowserContext();
  page = await context.newPage();
  seen = { requests: [], console: [], errors: [], dialogs: [] };
  const mine = seen;
  page.on("request", (request) => mine.requests.push(request.url()));
  page.on("console", (message) => mine.console.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => mine.errors.push(String(error)));
  page.on("dialog", (dialog) => (mine.dialogs.push(dialog.message()), dialog.dismiss()));
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  await page.setJavaScriptEnabled(scripts);
  return arrived(await page.goto(url, { waitUntil: "load" }));
}

async function arrived(response) {
  await page.waitForNetworkIdle({ idleTime: 100 });
  return { status: response?.status() ?? null, headers: response?.headers() ?? {}, url: page.url() };
}

async function navigated(action) {
  const [response] = await Promise.all([page.waitForNavigation({ waitUntil: "load" }), action()]);
  return arrived(response);
}

const commands = {
  version: () => browser.version(),
  open,
  go: ({ url }) => navigated(() => page.goto(url)),
  click: ({ selector }) => navigated(() => page.click(selector)),
  press: ({ key }) => page.keyboard.press(key),
  enter: ({ key }) => navigated(() => page.keyboard.press(key)),
  type: ({ selector, text }) => page.type(selector, text),
  evaluate: ({ expression }) => page.evaluate(expression),
  seen: () => seen,
  screenshot: async ({ path, whole, selector }) => {
    const what = selector ? await page.waitForSelector(selector) : page;
    await what.screenshot({ path, ...(selector ? {} : { fullPage: whole }) });
  },
};

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
answer({ ok: await browser.version() });
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  try {
    answer({ ok: (await commands[command](given)) ?? null });
  } catch (error) {
    answer({ error: String(error) });
  }
}
await browser.close();
