// Headless Firefox, driven over WebDriver BiDi (--remote-debugging-port), with the interface of chromium.js.
'use strict';
const fs = require('fs');
const { spawn } = require('child_process');
const { WebSocketClient } = require('./websocket');

const PATIENCE_MS = 60000;

/** The preferences of a browser without traffic of its own, whose requests to loopback go to the proxy too. */
const PREFERENCES = {
  'app.normandy.enabled': false,
  'app.update.auto': false,
  'browser.newtabpage.enabled': false,
  'browser.region.update.enabled': false,
  'browser.safebrowsing.downloads.remote.enabled': false,
  'browser.safebrowsing.malware.enabled': false,
  'browser.safebrowsing.phishing.enabled': false,
  'browser.shell.checkDefaultBrowser': false,
  'browser.startup.page': 0,
  'browser.topsites.contile.enabled': false,
  'datareporting.policy.dataSubmissionEnabled': false,
  'dom.push.connection.enabled': false,
  'dom.security.https_first': false,
  'extensions.update.enabled': false,
  'media.gmp-manager.updateEnabled': false,
  'network.captive-portal-service.enabled': false,
  'network.connectivity-service.enabled': false,
  'network.dns.disablePrefetch': true,
  'network.proxy.allow_hijacking_localhost': true,
  'network.proxy.failover_direct': false,
  'network.proxy.no_proxies_on': '',
  'network.trr.mode': 5,
  'services.settings.server': 'data:,',
  'toolkit.telemetry.server': 'data:,',
};

/** Returns the preferences of a proxy: direct://, http://HOST:PORT, socks5://HOST:PORT, or pac:URL. */
function proxyPreferences(proxy) {
  if (proxy === 'direct://') return { 'network.proxy.type': 0 };
  if (proxy.startsWith('pac:')) {
    return { 'network.proxy.type': 2, 'network.proxy.autoconfig_url': proxy.slice(4) };
  }
  const { protocol, hostname, port } = new URL(proxy);
  const kinds = protocol === 'socks5:' ? ['socks'] : ['http', 'ssl'];
  const preferences = { 'network.proxy.type': 1, 'network.proxy.socks_remote_dns': true };
  for (const kind of kinds) {
    preferences[`network.proxy.${kind}`] = hostname;
    preferences[`network.proxy.${kind}_port`] = Number(port);
  }
  return preferences;
}

/** Makes a profile with preferences. An existing one keeps its other files, such as its certificates. */
function writeProfile(profile, preferences) {
  fs.mkdirSync(profile, { recursive: true });
  const lines = Object.entries(preferences).map(([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});`);
  fs.writeFileSync(`${profile}/user.js`, lines.join('\n'));
}

/** A browser without a window. */
class Browser {
  /** The log is beside the profile. PREFERENCES come on top of those above. */
  constructor(proxy, profile, preferences = {}) {
    writeProfile(profile, { ...PREFERENCES, ...proxyPreferences(proxy), ...preferences });
    const log = fs.openSync(`${profile}.log`, 'a');
    const options = ['--headless', '--no-remote', '--profile', profile, '--remote-debugging-port=0', '--remote-allow-system-access'];
    const environment = { ...process.env, MOZ_CRASHREPORTER_DISABLE: '1' };
    this.process = spawn('firefox-esr', options, { stdio: ['ignore', log, 'pipe'], env: environment });
    // Unlike Chromium, it does not end with its connection.
    process.on('exit', () => this.process.kill());
    this.next = 0;
    this.waiting = new Map();
    this.listeners = [];
    this.ready = this.connect(log, profile);
  }

  async connect(log, profile) {
    let said = '';
    const address = await new Promise((resolve, reject) => {
      this.process.on('error', reject);
      this.process.on('exit', () => {
        reject(new Error(`Firefox ended: ${profile}.log`));
        this.fail(new Error(`Firefox ended: ${profile}.log`));
      });
      this.process.stderr.on('data', (data) => {
        fs.writeSync(log, data);
        said += data;
        const found = /WebDriver BiDi listening on (ws:\/\/\S+)\n/.exec(said);
        if (found) resolve(found[1]);
      });
    });
    this.socket = await WebSocketClient.connect(`${address}/session`, (text) => this.take(JSON.parse(text)));
    await this.command('session.new', { capabilities: { alwaysMatch: { acceptInsecureCerts: false } } });
    const events = ['network', 'log.entryAdded', 'browsingContext.load'];
    await this.command('session.subscribe', { events });
  }

  take(message) {
    const waiting = this.waiting.get(message.id);
    if (waiting) {
      this.waiting.delete(message.id);
      if (message.type === 'error') waiting.reject(new Error(`${message.error}: ${message.message}`));
      else waiting.resolve(message.result);
    } else {
      for (const listener of [...this.listeners]) listener(message);
    }
  }

  fail(error) {
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  command(method, params = {}) {
    this.next += 1;
    const id = this.next;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ id, method, params }));
    });
  }

  async close() {
    await this.ready.catch(() => {});
    const ended = new Promise((resolve) => this.process.once('close', resolve));
    await this.command('browser.close').catch(() => {});
    await ended;
  }

  /** Opens a tab, in another context of the browser if one is named. */
  async page(userContext) {
    await this.ready;
    const { context } = await this.command('browsingContext.create', { type: 'tab', userContext });
    return new Page(this, context);
  }

  /** Runs a script with the rights of the browser itself. */
  async privileged(expression) {
    await this.ready;
    const { contexts } = await this.command('browsingContext.getTree', { 'moz:scope': 'chrome' });
    return evaluate(this, contexts[0].context, expression);
  }
}

async function evaluate(browser, context, expression) {
  const whole = `(async () => JSON.stringify((await (${expression})) ?? null))()`;
  const parameters = { expression: whole, target: { context }, awaitPromise: true };
  const answer = await browser.command('script.evaluate', parameters);
  if (answer.type === 'exception') throw new Error(answer.exceptionDetails.text);
  return JSON.parse(answer.result.value);
}

class Page {
  constructor(browser, context) {
    this.browser = browser;
    this.context = context;
    this.errors = [];
    /** Responses: url, status, protocol, isCached, fields in lower case. */
    this.responses = [];
    /** Requests without a response: their URLs and errors. */
    this.failures = [];
    browser.listeners.push(({ method, params }) => {
      if (params?.context !== context && params?.source?.context !== context) return;
      if (method === 'log.entryAdded' && params.level === 'error') this.errors.push(params.text);
      if (method === 'network.fetchError') this.failures.push(`${params.request.url} ${params.errorText}`);
      if (method === 'network.responseCompleted') this.responses.push(responseOf(params));
    });
  }

  send(method, params = {}) {
    return this.browser.command(method, { context: this.context, ...params });
  }

  /** Opens an address and waits for the end of its load. */
  async open(url) {
    await this.send('browsingContext.navigate', { url, wait: 'complete' });
  }

  /** Empties `responses`. */
  async watch() {
    this.responses = [];
  }

  async reload() {
    await this.send('browsingContext.reload', { wait: 'complete' });
  }

  nextLoad() {
    return new Promise((resolve) => {
      const listener = ({ method, params }) => {
        if (method !== 'browsingContext.load' || params.context !== this.context) return;
        this.browser.listeners.splice(this.browser.listeners.indexOf(listener), 1);
        resolve();
      };
      this.browser.listeners.push(listener);
    });
  }

  /** Runs a script that leaves the page, and waits for the end of the next load. */
  async follow(expression) {
    const loaded = this.nextLoad();
    await this.evaluate(`void setTimeout(() => ${expression})`);
    // An evaluation would fail if it ran while the browser replaced the page.
    await loaded;
  }

  async traverse(delta) {
    const loaded = this.nextLoad();
    await this.send('browsingContext.traverseHistory', { delta });
    // A page from the back-forward cache has no load event.
    await Promise.race([loaded, new Promise((resolve) => setTimeout(resolve, 1000))]);
  }

  evaluate(expression) {
    return evaluate(this.browser, this.context, expression);
  }

  /** Waits until an expression is true. */
  async until(expression) {
    const end = Date.now() + PATIENCE_MS;
    while (!(await this.evaluate(expression))) {
      if (Date.now() > end) throw new Error(`never true: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

function responseOf({ request, response }) {
  const fields = {};
  for (const { name, value } of response.headers) fields[name.toLowerCase()] = value.value;
  const { status, protocol, fromCache } = response;
  return { url: request.url, status, protocol, isCached: fromCache, fields, request };
}

module.exports = { Browser };
