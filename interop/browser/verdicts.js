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

async function visit(browser, url) {
  const page = await browser.page();
  const lines = [];
  const complete = new Set();
  let told = () => {};
  browser.listeners.push(({ sessionId, method, params }) => {
    if (sessionId !== page.session) return;
    if (method === 'Network.responseReceived') {
      const { url: at, status, securityDetails, headers } = params.response;
      const cache = Object.entries(headers).find(([name]) => name.toLowerCase() === 'cache-status');
      lines.push(`response ${at} ${status} issuer=${securityDetails?.issuer} cache=${cache?.[1]}`);
    }
    if (method === 'Page.lifecycleEvent' && params.name === 'load') {
      complete.add(params.loaderId);
      told();
    }
  });
  await page.send('Page.setLifecycleEventsEnabled', { enabled: true });
  await page.send('Network.enable');
  const { errorText, loaderId } = await page.send('Page.navigate', { url });
  if (errorText) return [`verdict ${url} ${errorText}`];
  while (!complete.has(loaderId)) await new Promise((resolve) => { told = resolve; });
  const text = await page.evaluate('document.body.innerText');
  return [`verdict ${url} loaded`, `text ${url} ${text.replace(/\s+/g, ' ')}`, ...lines];
}

async function main() {
  const browser = new Browser(proxy, profile, ['--proxy-bypass-list=<-loopback>', `--host-resolver-rules=${rules}`]);
  for (const url of urls) {
    for (const line of await visit(browser, url)) console.log(line);
  }
  await browser.close();
}

main().catch((error) => {
  console.log(`no verdict: ${error.message}`);
  process.exit(1);
});
