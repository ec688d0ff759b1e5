// The cases of interop/dashboard.sh: Chromium, driven over the DevTools protocol (--remote-debugging-pipe).
//
//   node dashboard.js TANDEM CLIENT GATEWAY SITE PROXY PROFILE AXE PROCESS
//
// TANDEM is the program, CLIENT and GATEWAY are the control sockets of both ends, and PROCESS is the client. SITE is a page of 100 images, which Chromium loads through PROXY first. AXE is the file
// of axe-core. One line is written for each case, and the exit status is 1 if one fails.
'use strict';
const fs = require('fs');
const http = require('http');
const { execFileSync } = require('child_process');
const { Browser } = require('./chromium');

const [tandem, clientControl, gatewayControl, site, proxy, profile, axe, client] = process.argv.slice(2);

/** Returns a URL that opens a dashboard once, within a minute. */
function urlOf(control) {
  return execFileSync(tandem, ['open', '--print', '--control', control]).toString().trim();
}

const { origin: dashboard, port } = new URL(urlOf(clientControl));
let failed = 0;
let count = 0;

/** Returns the serious findings of axe-core in a page. */
async function seriousFindings(page) {
  const { frameTree } = await page.send('Page.getFrameTree');
  const params = { frameId: frameTree.frame.id, worldName: 'axe' };
  const { executionContextId } = await page.send('Page.createIsolatedWorld', params);
  await page.evaluate(fs.readFileSync(axe, 'utf8'), executionContextId);
  const run = `axe.run().then((found) => found.violations
    .filter((it) => ['serious', 'critical'].includes(it.impact))
    .map((it) => it.id + ': ' + it.nodes.map((node) => node.html).join(' ')))`;
  return page.evaluate(run, executionContextId);
}

function setScheme(page, value) {
  return page.send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] });
}

/** Runs a case. It fails if the function throws or returns something other than undefined. */
async function check(label, run) {
  count += 1;
  let problem;
  try {
    problem = await run();
  } catch (error) {
    problem = error.message;
  }
  if (problem === undefined) {
    console.log(`ok    ${label}`);
  } else {
    failed += 1;
    console.log(`FAIL  ${label}: ${JSON.stringify(problem)}`);
  }
}

function equal(found, wanted) {
  return found === wanted ? undefined : `${found}, not ${wanted}`;
}

/** The element of the page load of SITE. Chromium's own requests are other loads. */
const LOAD = `Array.from(document.querySelectorAll('#loads details')).find((load) =>
  load.querySelector('summary').textContent.includes('${site}'))`;

/** Requests a path as it is, which a browser would escape. */
function requestThroughProxy(path) {
  const { hostname: host, port: at } = new URL(proxy);
  return new Promise((resolve, reject) => {
    const options = { host, port: at, path: new URL(site).origin + path, headers: { host: new URL(site).host } };
    http.get(options, (response) => response.resume().on('end', resolve)).on('error', reject);
  });
}

/** Returns the time in milliseconds until a page satisfies a condition. */
async function timeOf(page, url, condition) {
  await page.open('about:blank');
  const begun = Date.now();
  await page.open(url);
  await page.until(condition);
  return Date.now() - begun;
}

/** Returns the processor time of a process in seconds. */
function processorTime(process) {
  const fields = fs.readFileSync(`/proc/${process}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** What a hostile page tries. Each line says how it ended; the page can read nothing. */
const ATTACKS = `(async () => {
  const base = ${JSON.stringify(dashboard)};
  const got = [];
  const attempt = async (name, run) => {
    try { got.push(name + ': ' + await run()); } catch (error) { got.push(name + ': blocked'); }
  };
  const element = (name, fields) => new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement(name), fields);
    made.onload = () => resolve(made);
    made.onerror = () => reject(new Error('error'));
    document.body.append(made);
  });
  await attempt('fetch', async () => (await fetch(base + '/overview')).text());
  await attempt('fetch of the page', async () => (await fetch(base + '/')).text());
  await attempt('fetch with a key', async () =>
    (await fetch(base + '/overview', { headers: { Authorization: 'Bearer x' } })).text());
  for (const path of ['/', '/overview', '/session', '/script.js']) {
    await attempt('opaque fetch of ' + path, async () =>
      (await fetch(base + path, { mode: 'no-cors', credentials: 'include', referrerPolicy: 'no-referrer' })).type);
  }
  await attempt('image', async () => (await element('img', { src: base + '/style.css' })).width);
  await attempt('module', async () => Object.keys(await import(base + '/script.js')).length);
  const channel = (made) => new Promise((resolve, reject) => {
    made.onopen = () => resolve('open');
    made.onerror = () => reject(new Error('error'));
  });
  await attempt('socket', async () => channel(new WebSocket(base.replace('http', 'ws') + '/overview')));
  await attempt('events', async () => channel(new EventSource(base + '/overview')));
  await attempt('form', async () => (await fetch(base + '/session', { method: 'POST', body: 'x' })).text());
  await attempt('script', async () => (await element('script', { src: base + '/script.js' })).src);
  await attempt('script without referrer', async () =>
    (await element('script', { src: base + '/script.js', referrerPolicy: 'no-referrer' })).src);
  await attempt('style', async () =>
    (await element('link', { rel: 'stylesheet', href: base + '/style.css' })).sheet.cssRules.length);
  await attempt('frame', async () => (await element('iframe', { src: base + '/' })).contentDocument.body.innerHTML);
  await attempt('window', async () => {
    const opened = window.open(base + '/');
    await new Promise((resolve) => setTimeout(resolve, 500));
    return opened.document.body.innerHTML;
  });
  return got.filter((line) => !line.endsWith(': blocked'));
})()`;

async function main() {
  const attacker = http.createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'text/html' });
    response.end('<!doctype html><title>attacker</title><body>');
  });
  await new Promise((resolve) => attacker.listen(0, '127.0.0.1', resolve));
  const browser = new Browser(proxy, profile, [
    '--proxy-bypass-list=attacker.test', '--host-resolver-rules=MAP attacker.test 127.0.0.1',
  ]);
  const page = await browser.page();
  await page.open(site);
  await page.until('Array.from(document.images).every((image) => image.complete)');

  await page.open(urlOf(clientControl));
  await check('the dashboard shows the page load', async () => {
    await page.until(`${LOAD} !== undefined`);
    await page.until(`${LOAD}.querySelectorAll('tbody tr').length > 100`);
  });
  // An empty page is the measure of the machine and of the browser: other work delays both.
  const times = { dashboard: [], empty: [] };
  for (let turn = 0; turn < 5; turn += 1) {
    times.empty.push(await timeOf(page, `http://127.0.0.1:${attacker.address().port}/`, 'document.body !== null'));
    times.dashboard.push(await timeOf(page, urlOf(clientControl), `${LOAD} !== undefined`));
  }
  const best = { dashboard: Math.min(...times.dashboard), empty: Math.min(...times.empty) };
  await check('the dashboard shows its data in 300 ms, or in ten times the time of an empty page', () =>
    best.dashboard <= Math.max(300, 10 * best.empty) ? undefined : best);
  await check('the dashboard shows pushes', async () =>
    page.until(`${LOAD}.querySelectorAll('td.pushed, td.joined').length > 90`));
  await check('the key is no longer in the address', async () => equal(await page.evaluate('location.href'), `${dashboard}/`));
  await check('the dashboard lists the gateway', async () => page.until("/127\\.0\\.0\\.1/.test(document.querySelector('#sessions').textContent)"));
  await check('the dashboard names the route', async () =>
    page.until("document.querySelector('#routes').textContent.startsWith('all hostsgateway h2+tcp://127.0.0.1')"));
  const [used, since] = [processorTime(client), Date.now()];
  await new Promise((resolve) => setTimeout(resolve, 10000));
  const share = (100000 * (processorTime(client) - used)) / (Date.now() - since);
  await check('the dashboard costs the client less than 1 % of a core', () => (share < 1 ? undefined : share));
  await check('the dashboard has no problem', async () =>
    equal(await page.evaluate("document.querySelector('#problems').textContent"), 'There are no problems.'));
  await check('a page load opens by keyboard and stays open', async () => {
    for (let step = 0; step < 50; step += 1) {
      await page.press('Tab', 9);
      if (await page.evaluate("document.activeElement.matches('#loads summary')")) break;
    }
    await page.press('Enter', 13);
    await page.until("document.activeElement.parentElement.matches('#loads details[open]')");
    const before = await page.evaluate("document.querySelector('#about').textContent");
    await page.until(`document.querySelector('#about').textContent !== ${JSON.stringify(before)}`);
    return equal(await page.evaluate("document.activeElement.matches('#loads details[open] > summary')"), true);
  });
  const grounds = [];
  for (const scheme of ['light', 'dark']) {
    await setScheme(page, scheme);
    grounds.push(await page.evaluate('getComputedStyle(document.body).backgroundColor'));
    await check(`axe-core finds nothing serious (${scheme})`, async () => {
      const found = await seriousFindings(page);
      return found.length > 0 ? found : undefined;
    });
  }
  await check('the colours follow the scheme', () => (grounds[0] !== grounds[1] ? undefined : grounds[0]));
  await check('the page fits a phone', async () => {
    await page.send('Emulation.setDeviceMetricsOverride', { width: 360, height: 740, deviceScaleFactor: 2, mobile: true });
    const wide = await page.evaluate('document.documentElement.scrollWidth');
    if (process.env.SHOT) {
      const { data } = await page.send('Page.captureScreenshot', { captureBeyondViewport: false });
      fs.writeFileSync(`${process.env.SHOT}-phone.png`, Buffer.from(data, 'base64'));
    }
    const beyond = `Array.from(document.querySelectorAll('body *'))
      .filter((it) => it.getBoundingClientRect().right > 360 && !it.closest('.wide'))
      .slice(0, 3).map((it) => it.outerHTML.slice(0, 200))`;
    const found = await page.evaluate(beyond);
    await page.send('Emulation.clearDeviceMetricsOverride');
    return wide <= 360 ? undefined : `${wide} pixels: ${found}`;
  });
  if (process.env.SHOT) {
    await page.send('Emulation.setDeviceMetricsOverride', { width: 1100, height: 1200, deviceScaleFactor: 1, mobile: false });
    for (const scheme of ['light', 'dark']) {
      await setScheme(page, scheme);
      const { data } = await page.send('Page.captureScreenshot');
      fs.writeFileSync(`${process.env.SHOT}-${scheme}.png`, Buffer.from(data, 'base64'));
    }
  }
  await check('the page causes no error', () => (page.errors.length > 0 ? page.errors : undefined));

  await check('markup in a URL is shown as text', async () => {
    const markup = '/<svg/onload=document.title=1>';
    await requestThroughProxy(markup);
    await page.until(`document.querySelector('#loads').textContent.includes(${JSON.stringify(markup)})`);
    return equal(await page.evaluate("document.querySelectorAll('#loads svg').length"), 0);
  });
  const gateway = await browser.page();
  await gateway.open(urlOf(gatewayControl));
  await check("the gateway's page lists its clients and its cache", async () => {
    await gateway.until("document.querySelector('#sessions').textContent.includes('a client')");
    await gateway.until("document.querySelector('#saving').textContent.includes('cache')");
  });
  await check("the gateway's page has no page loads and no routes", async () =>
    equal(await gateway.evaluate("['#recent', '#ways'].every((it) => document.querySelector(it).hidden)"), true));
  await check("axe-core finds nothing serious on the gateway's page", async () => {
    const found = await seriousFindings(gateway);
    return found.length > 0 ? found : undefined;
  });
  await check('an exchange of the code that fails is repeated', async () => {
    const other = await browser.page();
    let lost = 0;
    await other.send('Fetch.enable', { patterns: [{ urlPattern: '*/session' }] });
    browser.listeners.push(({ sessionId, method, params }) => {
      if (sessionId !== other.session || method !== 'Fetch.requestPaused') return;
      lost += 1;
      const { requestId } = params;
      if (lost === 1) other.send('Fetch.failRequest', { requestId, errorReason: 'Failed' });
      else other.send('Fetch.continueRequest', { requestId });
    });
    await other.open(urlOf(clientControl));
    await other.until(`${LOAD} !== undefined`);
    return equal(lost, 2);
  });

  const hostile = await browser.page();
  await hostile.open(`http://127.0.0.1:${attacker.address().port}/`);
  await check('a page of another port reads nothing', async () => {
    const got = await hostile.evaluate(ATTACKS);
    return got.length > 0 ? got : undefined;
  });
  for (const path of ['/', '/overview', '/session']) {
    await check(`another name of this machine gets no answer at ${path}`, async () => {
      await hostile.open(`http://attacker.test:${port}${path}`);
      return equal(await hostile.evaluate('document.body.innerText.trim()'), 'Misdirected request.');
    });
  }
  await check('a stranger without the key sees no data', async () => {
    await hostile.open(`${dashboard}/`);
    await hostile.until("document.querySelector('#state').textContent.includes('tandem open')");
    return equal(await hostile.evaluate("document.querySelector('#loads').textContent"), '');
  });
  await check('the dashboard goes on meanwhile', async () =>
    equal(await page.evaluate("document.querySelector('#state').textContent"), ''));
  console.log(`      the dashboard showed its data after ${best.dashboard} ms, and an empty page took ${best.empty} ms`);
  console.log(`      the client used ${share.toFixed(2)} % of a core while the dashboard was open`);
  await browser.close();
  attacker.close();
  console.log(`${count - failed} of ${count} cases`);
  process.exit(failed > 0 ? 1 : 0);
}

main().catch((error) => {
  console.log(`FAIL  ${error.message}`);
  process.exit(1);
});
