// The HTTP/2 connections of a browser to its proxy, for interop/contexts.sh: which contexts of the browser share one?
//
//   node contexts.js BROWSER PROFILE DIRECTORY
//
// BROWSER is chromium or firefox, and the directory has proxy.pem, proxy.key, sites.pem and sites.key. This program is the proxy
// and all sites. Each context opens pages of sites with its own name, and each page has an image of another host of its site.
// At the end there is a line for each connection with the hosts of its tunnels.
'use strict';
const fs = require('fs');
const http2 = require('http2');
const https = require('https');
const net = require('net');

const [name, profile, directory] = process.argv.slice(2);
const { Browser } = require(`./${name}`);
const identity = (of) => ({
  cert: fs.readFileSync(`${directory}/${of}.pem`),
  key: fs.readFileSync(`${directory}/${of}.key`),
});

/** The sites that the tab of each context opens, one after the other. */
const SITES = { usual: ['usual.test', 'other.test'], first: ['first.test'], second: ['second.test'] };

const sites = https.createServer(identity('sites'), (request, response) => {
  const [, ...site] = request.headers.host.split('.');
  if (request.url !== '/') return response.end();
  response.setHeader('content-type', 'text/html');
  return response.end(`<!doctype html><p>a page<img src=https://part.${site.join('.')}/image>`);
});

/** The hosts of the tunnels of each connection. */
const connections = new Map();
const proxy = http2.createSecureServer(identity('proxy'));
proxy.on('session', (session) => {
  connections.set(session, []);
  session.on('error', () => {});
});
proxy.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  if (headers[':method'] !== 'CONNECT') return stream.close();
  const [host] = headers[':authority'].split(':');
  connections.get(stream.session).push(host);
  const socket = net.connect(sites.address().port, '127.0.0.1', () => {
    stream.respond({ ':status': 200 });
    stream.pipe(socket).pipe(stream);
  });
  socket.on('error', () => stream.close());
});

const listen = (server) => new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));

/** Waits for a tunnel to a host. */
async function tunnelled(host) {
  for (let tries = 0; tries < 1200; tries += 1) {
    if ([...connections.values()].some((hosts) => hosts.includes(host))) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`no tunnel to ${host}, but to ${[...connections.values()].flat()}`);
}

async function openPages(page, of) {
  for (const site of of) {
    await page.open(`https://www.${site}/`);
    await tunnelled(`part.${site}`);
  }
}

async function inChromium() {
  const through = `https://127.0.0.1:${proxy.address().port}`;
  const browser = new Browser(through, profile, ['--ignore-certificate-errors']);
  await openPages(await browser.page(), SITES.usual);
  for (const context of ['first', 'second']) {
    const { browserContextId } = await browser.send('Target.createBrowserContext');
    await openPages(await browser.page(browserContextId), SITES[context]);
  }
  return browser;
}

/** Opens a private window with an address. */
const openPrivately = (url) =>
  `void Services.wm.getMostRecentWindow('navigator:browser').openTrustedLinkIn(${JSON.stringify(url)}, 'window', { private: true })`;

async function inFirefox() {
  const script = `function FindProxyForURL() { return 'HTTPS 127.0.0.1:${proxy.address().port}' }`;
  const browser = new Browser(`pac:data:,${encodeURIComponent(script)}`, profile);
  await openPages(await browser.page(), SITES.usual);
  const { userContext } = await browser.command('browser.createUserContext');
  await openPages(await browser.page(userContext), SITES.first);
  await browser.privileged(openPrivately(`https://www.${SITES.second[0]}/`));
  await tunnelled(`part.${SITES.second[0]}`);
  return browser;
}

async function main() {
  await Promise.all([listen(sites), listen(proxy)]);
  const browser = await (name === 'chromium' ? inChromium() : inFirefox());
  await browser.close();
  for (const hosts of connections.values()) {
    if (hosts.length > 0) console.log(`connection ${[...new Set(hosts)].join(' ')}`);
  }
  process.exit(0);
}

main().catch((error) => {
  console.log(`no result: ${error.message}`);
  process.exit(1);
});
