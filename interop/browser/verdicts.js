// A browser's verdicts about HTTPS pages, for interop/opened.sh and interop/browser.sh.
//
//   node verdicts.js BROWSER PROXY PROFILE URL...
//
// BROWSER is chromium or firefox, and names that end in .test mean this machine. Each URL is opened in a tab of its own. It has
// a line of its verdict, which is "loaded" or the error, and a page that is loaded has lines of its text and of the responses:
//
//   verdict URL loaded|ERROR
//   text URL TEXT
//   response URL STATUS issuer=NAME cache=FIELD
'use strict';

const [name, proxy, profile, ...urls] = process.argv.slice(2);
const { Browser } = require(`./${name}`);

/** The error of requests under way when an interface of the machine comes or goes, whoever causes that. */
const CHANGED = 'net::ERR_NETWORK_CHANGED';

/** Opens a page in Chromium, again if the network has changed meanwhile. */
async function verdictOfChromium(browser, url) {
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
      const cache = Object.entries(headers).find(([field]) => field.toLowerCase() === 'cache-status');
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

/** Keeps the issuers of responses in the browser's own process, which alone knows them. */
const KEEP_ISSUERS = `void (globalThis.issuers = {}, Services.obs.addObserver((channel) => {
  channel.QueryInterface(Ci.nsIHttpChannel);
  issuers[channel.URI.spec] = channel.securityInfo?.serverCert?.issuerCommonName;
}, 'http-on-examine-response'))`;

async function verdictOfFirefox(browser, url) {
  const page = await browser.page();
  await page.watch();
  try {
    await page.open(url);
  } catch (error) {
    const [, code] = /((?:SEC|SSL|MOZILLA_PKIX|NS)_ERROR_\w+)\)*$/.exec(error.message) ?? [];
    return [`verdict ${url} ${code ?? error.message}`];
  }
  const text = await page.evaluate('document.body.innerText');
  const lines = [`verdict ${url} loaded`, `text ${url} ${text.replace(/\s+/g, ' ')}`];
  const issuers = await browser.privileged('issuers');
  for (const { url: at, status, fields } of page.responses) {
    lines.push(`response ${at} ${status} issuer=${issuers[at]} cache=${fields['cache-status']}`);
  }
  return lines;
}

async function start() {
  if (name === 'chromium') {
    return new Browser(proxy, profile, ['--proxy-bypass-list=<-loopback>', '--host-resolver-rules=MAP *.test 127.0.0.1']);
  }
  const hosts = urls.map((url) => new URL(url).hostname).filter((host) => host.endsWith('.test'));
  const browser = new Browser(proxy, profile, { 'network.dns.localDomains': hosts.join() });
  await browser.privileged(KEEP_ISSUERS);
  return browser;
}

async function main() {
  const browser = await start();
  const verdict = name === 'chromium' ? verdictOfChromium : verdictOfFirefox;
  for (const url of urls) {
    for (const line of await verdict(browser, url)) console.log(line);
  }
  await browser.close();
}

main().catch((error) => {
  console.log(`no verdict: ${error.message}`);
  process.exit(1);
});
