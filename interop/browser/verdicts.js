// Chromium's verdicts about HTTPS pages, for interop/opened.sh.
//
//   node verdicts.js PROXY PROFILE RULES URL...
//
// RULES are those of --host-resolver-rules. Each URL is opened in a tab of its own. It has a line of its verdict, which is
// "loaded" or the error, and a page that is loaded has lines of its text and of the responses:
//
//   verdict URL loaded|ERROR
//   text URL TEXT
//   response URL STATUS issuer=NAME cache=FIELD
'use strict';
const { Browser } = require('./chromium');

const [proxy, profile, rules, ...urls] = process.argv.slice(2);

/** The error of requests under way when an interface of the machine comes or goes, whoever causes that. */
const CHANGED = 'net::ERR_NETWORK_CHANGED';

/** Opens a page, again if the network has changed meanwhile. */
async function verdict(browser, url) {
  for (let tries = 1; ; tries += 1) {
    const { lines, hasChanged } = await visit(browser, url);
    if (!hasChanged || tries === 10) return lines;
  }
}

async function visit(browser, url) {
  const page = await browser.page();
  const lines = [];
  let hasChanged = false;
  const complete = new Set();
  let told = () => {};
  browser.listeners.push(({ sessionId, method, params }) => {
    if (sessionId !== page.session) return;
    if (method === 'Network.responseReceived') {
      const { url: at, status, securityDetails, headers } = params.response;
      const cache = Object.entries(headers).find(([name]) => name.toLowerCase() === 'cache-status');
      lines.push(`response ${at} ${status} issuer=${securityDetails?.issuer} cache=${cache?.[1]}`);
    }
    if (method === 'Network.loadingFailed') hasChanged ||= params.errorText === CHANGED;
    if (method === 'Network.webSocketFrameError') hasChanged ||= params.errorMessage.includes(CHANGED);
    if (method === 'Page.lifecycleEvent' && params.name === 'load') {
      complete.add(params.loaderId);
      told();
    }
  });
  await page.send('Page.setLifecycleEventsEnabled', { enabled: true });
  await page.send('Network.enable');
  const { errorText, loaderId } = await page.send('Page.navigate', { url });
  if (errorText) return { lines: [`verdict ${url} ${errorText}`], hasChanged: errorText === CHANGED };
  while (!complete.has(loaderId)) await new Promise((resolve) => { told = resolve; });
  const text = await page.evaluate('document.body.innerText');
  lines.unshift(`verdict ${url} loaded`, `text ${url} ${text.replace(/\s+/g, ' ')}`);
  return { lines, hasChanged };
}

async function main() {
  const browser = new Browser(proxy, profile, ['--proxy-bypass-list=<-loopback>', `--host-resolver-rules=${rules}`]);
  for (const url of urls) {
    for (const line of await verdict(browser, url)) console.log(line);
  }
  await browser.close();
}

main().catch((error) => {
  console.log(`no verdict: ${error.message}`);
  process.exit(1);
});
