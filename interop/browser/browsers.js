// The cases of interop/browsers.sh: one browser, Firefox ESR or Chromium, meets the client as its users do.
//
//   node browsers.js BROWSER TANDEM DIRECTORY
//
// DIRECTORY has the certificate of the origins (good.pem, good.key), its authority (root.pem), the home directory whose
// browsers trust both (home), the profile of Firefox that does (profile), and the local authority (authority). Each case
// writes one line.
'use strict';
const fs = require('fs');
const { spawn } = require('child_process');
const { World, bodyOf, resourcesOf, hash, HASH, noise } = require('./world');

const [name, tandem, directory] = process.argv.slice(2);
const { Browser } = require(`./${name}`);

/** The time limit of a case. */
const PATIENCE_MS = 60000;

let count = 0;
let failed = 0;
const ended = [];

/** Runs a case. It fails if the function throws or returns a problem. */
async function check(label, run) {
  count += 1;
  let problem;
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(reject, PATIENCE_MS, new Error('it takes too long')); });
  try {
    problem = await Promise.race([run(), late]);
  } catch (error) {
    problem = error.message;
  }
  clearTimeout(timer);
  if (problem === undefined) {
    console.log(`ok    ${name}: ${label}`);
  } else {
    failed += 1;
    console.log(`FAIL  ${name}: ${label}: ${typeof problem === 'string' ? problem : JSON.stringify(problem)}`);
  }
}

function equal(found, wanted) {
  const [one, other] = [found, wanted].map((value) => JSON.stringify(value));
  return one === other ? undefined : `${one}, not ${other}`;
}

/** Starts a program of ours, and returns the addresses of its listeners and the URL of its metrics. */
function start(role, options, count) {
  const child = spawn(tandem, [role, ...options, '--metrics', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'pipe'] });
  ended.push(() => child.kill());
  const log = fs.createWriteStream(`${directory}/${role}-${ended.length}.log`);
  return new Promise((resolve, reject) => {
    let said = '';
    const take = (data) => {
      log.write(data);
      said += data;
      const found = [...said.matchAll(/listening on \S+:\/\/(\S+)\n/g)].map(([, address]) => address);
      const metrics = /metrics on (\S+)\n/.exec(said);
      if (found.length === count && metrics) resolve([...found, metrics[1]]);
    };
    child.stdout.on('data', take);
    child.stderr.on('data', take);
    child.on('exit', () => reject(new Error(`${role} ended: ${said}`)));
  });
}

/** The TLS listener by the client's configuration. Chromium would send no loopback address there, and gets its address. */
function overTls(tls, http) {
  return name === 'firefox' ? `pac:http://${http}/proxy.pac` : `https://${tls}`;
}

let profiles = 0;

/** Starts the browser with a new profile that trusts the authorities. */
function browse(proxy, preferences = {}) {
  profiles += 1;
  const profile = `${directory}/${name}-${profiles}`;
  if (name === 'firefox') {
    fs.mkdirSync(profile, { recursive: true });
    for (const file of ['cert9.db', 'key4.db', 'pkcs11.txt']) fs.copyFileSync(`${directory}/profile/${file}`, `${profile}/${file}`);
    return new Browser(proxy, profile, preferences);
  }
  return new Browser(proxy, profile, ['--proxy-bypass-list=<-loopback>']);
}

/** Loads a page of TAG, and returns a problem unless each of its resources is as the origin has it. */
async function loadWhole(page, origins, tag) {
  await page.open(`${origins[0]}/page?${[tag, ...origins].join(',')}`);
  return compareAll(page, origins, tag);
}

async function compareAll(page, origins, tag) {
  await page.until('window.complete && document.readyState === "complete" && ran.length >= 7');
  page.loaded = page.responses.splice(0);
  // The comparison below asks origins again for what the browser does not share between requests of different modes.
  page.asked = page.world?.requests.length;
  const { images, styles, scripts, modules, font, data, frame } = resourcesOf(origins, tag);
  const urls = [...images, ...styles, ...scripts, ...modules, font, data, frame];
  // From the browser's cache where it has a copy: the bytes that the page got.
  const found = await page.evaluate(`Promise.all(${JSON.stringify(urls)}.map((url) =>
    fetch(url, { cache: 'force-cache' }).then((it) => it.arrayBuffer()).then((it) => (${HASH})(new Uint8Array(it)), String)))`);
  const wrong = urls.filter((url, n) => found[n] !== hash(bodyOf(new URL(url).pathname)[1]));
  const broken = await page.evaluate('Array.from(document.images).filter((image) => !image.naturalWidth).map((it) => it.src)');
  return wrong.length + broken.length > 0 ? { wrong, broken } : undefined;
}

/** The number of a page's responses that came by push. */
function pushedOf(page) {
  return page.loaded.filter(({ fields, isCached }) => !isCached && /tandem; hit/.test(fields['cache-status'] ?? '')).length;
}

const REQUESTS = 50;

/** The paths that reached the origins more than once, with the number of further requests. */
function repeated(requests) {
  const counts = new Map();
  for (const { host, path } of requests) counts.set(host + path, (counts.get(host + path) ?? 0) + 1);
  return [...counts].filter(([, number]) => number > 1).map(([path, number]) => `${path} ${number}`);
}

async function pushScenes(label, page, origins, world) {
  await page.watch();
  page.world = world;
  const tag = `push-${name}-${label.replace(/\W/g, '')}`;
  const since = world.requests.length;
  await check(`each byte of a page equals the origin's: ${label}`, () => loadWhole(page, origins, tag));
  const pushed = pushedOf(page);
  const again = repeated(world.requests.slice(since, page.asked).filter(({ path }) => path.includes(tag)));
  console.log(`      ${name}: ${pushed} of ${page.loaded.length} responses by push, ${again.length} resources requested again: ${label}`);
  await check(`pushes are used: ${label}`, () => (pushed > REQUESTS * 0.6 ? undefined : page.loaded
    .filter(({ fields }) => !/tandem; hit/.test(fields['cache-status'] ?? '')).map(({ url }) => new URL(url).pathname)));
  await check(`a reload is right: ${label}`, async () => {
    await page.reload();
    return compareAll(page, origins, tag);
  });
  await check(`back and forward are right: ${label}`, async () => {
    await page.open(`${origins[0]}/tagged`);
    await page.traverse(-1);
    const problem = await compareAll(page, origins, tag);
    await page.traverse(1);
    return problem ?? equal(await page.evaluate('document.body.innerText'), 'tagged');
  });
}

async function messageScenes(label, browser, page, origin, world) {
  await page.open(`${origin}/form`);
  await check(`a large POST comes back whole: ${label}`, async () => {
    const sent = hash(noise('post', 1000003));
    const back = await page.evaluate(`(async () => {
      const body = await (await fetch('/x/blob/0')).arrayBuffer();
      const twice = await (await fetch('/echo', { method: 'POST', body })).arrayBuffer();
      return (${HASH})(new Uint8Array(twice));
    })()`);
    return sent && equal(back, hash(bodyOf('/x/blob/0')[1]));
  });
  await check(`a form is sent and redirected: ${label}`, async () => {
    await page.follow('document.forms[0].submit()');
    return equal(await page.evaluate('location.search'), '?got=word=some');
  });
  await check(`a condition is answered: ${label}`, async () => {
    await page.open(`${origin}/tagged`);
    const since = world.requests.length;
    await page.reload();
    const conditions = world.of('/tagged', since).map(({ fields }) => fields['if-none-match']);
    return equal([conditions, await page.evaluate('document.body.innerText')], [['"one"'], 'tagged']);
  });
  await check(`WebSockets carry texts and bytes: ${label}`, async () => equal(await page.evaluate(SOCKETS), 'x,y,900000:true'));
  await check(`a download is whole: ${label}`, () => download(browser, page, origin));
}

/** All scenes in one browser. */
async function scenes(label, proxy, origins, world, isPushed) {
  const browser = browse(proxy, downloads());
  const page = await browser.page();
  if (isPushed) await pushScenes(label, page, origins, world);
  await messageScenes(label, browser, page, origins[0], world);
  await browser.close();
}

const SOCKETS = `new Promise((resolve, reject) => {
  const socket = new WebSocket(location.origin.replace('http', 'ws') + '/socket');
  const got = [];
  const bytes = new Uint8Array(900000).map((_, n) => n * 7);
  socket.binaryType = 'arraybuffer';
  socket.onopen = () => { socket.send('x'); socket.send('y'); socket.send(bytes); };
  socket.onerror = () => reject(new Error('socket error'));
  socket.onmessage = ({ data }) => {
    if (typeof data === 'string') { got.push(data); return; }
    const back = new Uint8Array(data);
    got.push(back.length + ':' + back.every((byte, n) => byte === bytes[n]));
    socket.close();
  };
  socket.onclose = () => resolve(got.join());
})`;

function downloads() {
  return {
    'browser.download.folderList': 2,
    'browser.download.dir': directory,
    'browser.helperApps.neverAsk.saveToDisk': 'application/octet-stream',
  };
}

async function download(browser, page, origin) {
  const file = `${directory}/blob.bin`;
  fs.rmSync(file, { force: true });
  if (name === 'chromium') await browser.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: directory });
  await page.evaluate(`void (location.href = '${origin}/download')`);
  const wanted = noise('/download', 1234567);
  for (let tries = 0; tries < 400; tries += 1) {
    if (fs.existsSync(file) && fs.statSync(file).size >= wanted.length) break;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  return fs.readFileSync(file).equals(wanted) ? undefined : 'other bytes';
}

/** Gives each connection the site of its page as the user name of SOCKS, as Tor Browser does. */
const ISOLATE = `(() => {
  const service = Cc['@mozilla.org/network/protocol-proxy-service;1'].getService(Ci.nsIProtocolProxyService);
  globalThis.isolation = {
    keys: new Set(),
    applyFilter(channel, proxy, callback) {
      const key = channel.loadInfo.originAttributes.firstPartyDomain || '--unknown--';
      this.keys.add(key);
      callback.onProxyFilterResult(proxy && service.newProxyInfoWithAuth('socks', proxy.host, proxy.port, key, 'nonce', '', '',
        proxy.flags, proxy.failoverTimeout, proxy.failoverProxy));
    },
  };
  service.registerChannelFilter(globalThis.isolation, 0);
})()`;

async function isolationScene(proxy, origins, metrics) {
  const browser = browse(proxy, { 'privacy.firstparty.isolate': true });
  await browser.privileged(ISOLATE);
  const page = await browser.page();
  const before = (await metrics()).sessions_opened;
  for (const [number, first] of [origins[0], origins[1], origins[0]].entries()) {
    const order = [first, ...origins.filter((origin) => origin !== first)];
    await check(`a page of an isolated site is whole: ${number}`, () => loadWhole(page, order, `isolated-${number}`));
  }
  // Firefox's own requests have a key of their own.
  const keys = await browser.privileged('Array.from(isolation.keys)');
  await check('the host of a page is the key of its resources', () =>
    equal(keys.filter((key) => key.startsWith('127.')), ['127.0.0.1', '127.0.0.2']));
  await check('each site has one session', async () => {
    const opened = (await metrics()).sessions_opened - before;
    return opened >= 2 && opened <= keys.length ? undefined : `${opened} sessions for ${keys}`;
  });
  await browser.close();
}

/** Reads the counters of a client. */
function metricsAt(address) {
  return async () => {
    const text = await (await fetch(address)).text();
    return Object.fromEntries([...text.matchAll(/^tandem_(\w+?)(?:_total)? (\d+)$/gm)].map(([, key, value]) => [key, Number(value)]));
  };
}

async function main() {
  const world = new World(directory);
  const plain = [];
  for (const host of ['127.0.0.1', '127.0.0.2', '127.0.0.3']) plain.push(`http://${host}:${await world.start(null, host)}`);
  const secure = [];
  for (let n = 0; n < 3; n += 1) secure.push(`https://localhost:${await world.start('good')}`);
  fs.writeFileSync(`${directory}/token`, 'a-token-of-some-length\n', { mode: 0o600 });
  const [gateway] = await start('gateway', ['--hold-out', '0', '--open-https', '--auth', `token-file=${directory}/token`,
    '--origin-ca', `${directory}/root.pem`, '--listen', 'h2+tcp://127.0.0.1:0', '--allow-dest', '127.0.0.0/8'], 1);
  const shared = ['--gateway', `h2+tcp://${gateway}?own=yes`, '--token-file', `${directory}/token`, '--cache-status',
    '--authority', `${directory}/authority`];
  const client = (...options) => start('client', [...shared, ...options], 3);
  // One address for each listener, since equal ones share a socket.
  const listen = ['--listen', 'h2+tls://127.0.0.1:0', '--listen', 'http://127.0.0.2:0', '--listen', 'socks5://127.0.0.3:0'];
  const [tls, http, socks, status] = await client(...listen);
  const ways = { 'HTTP/1.1': `http://${http}`, 'HTTP/2': overTls(tls, http), SOCKS: `socks5://${socks}` };
  for (const [label, proxy] of Object.entries(ways)) await scenes(label, proxy, plain, world, true);
  if (name === 'firefox') await isolationScene(ways.SOCKS, plain, metricsAt(status));
  const ports = secure.flatMap((origin) => ['--open-https-port', new URL(origin).port]);
  const levels = {
    unopened: [],
    'opened on this machine': [...ports, '--open-https', 'localhost', '--open-https-ca', `${directory}/root.pem`],
    'opened at the gateway': [...ports, '--open-https-at-gateway', 'localhost'],
  };
  for (const [label, options] of Object.entries(levels)) {
    const [over, at] = await client(...listen, ...options);
    await scenes(label, overTls(over, at), secure, world, label === 'opened at the gateway');
  }
  world.close();
}

main().catch((error) => {
  failed += 1;
  console.log(`FAIL  ${name}: ${error.stack}`);
}).finally(() => {
  for (const end of ended) end();
  console.log(`${count - failed} of ${count} cases of ${name} hold`);
  process.exit(failed === 0 ? 0 : 1);
});
