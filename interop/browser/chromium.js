// Headless Chromium, driven over the DevTools protocol (--remote-debugging-pipe), for dashboard.js and verdicts.js.
'use strict';
const fs = require('fs');
const { spawn } = require('child_process');

const PATIENCE_MS = 60000;

/** A browser without a window; messages are JSON, separated by zero bytes. */
class Browser {
  /** PROXY is that of --proxy-server, or pac:URL. The profile must be new, and its log is beside it. */
  constructor(proxy, profile, further) {
    const through = proxy.startsWith('pac:') ? `--proxy-pac-url=${proxy.slice(4)}` : `--proxy-server=${proxy}`;
    const options = [
      '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-dev-shm-usage', `--user-data-dir=${profile}`,
      through, ...further, '--remote-debugging-pipe', 'about:blank',
    ];
    const log = fs.openSync(`${profile}.log`, 'a');
    this.process = spawn('chromium', options, { stdio: ['ignore', log, log, 'pipe', 'pipe'] });
    this.process.on('exit', () => this.fail(new Error(`Chromium ended: ${profile}.log`)));
    this.next = 0;
    this.waiting = new Map();
    this.listeners = [];
    let rest = Buffer.alloc(0);
    this.process.stdio[4].on('data', (data) => {
      rest = Buffer.concat([rest, data]);
      for (let end = rest.indexOf(0); end >= 0; end = rest.indexOf(0)) {
        this.take(JSON.parse(rest.subarray(0, end).toString()));
        rest = rest.subarray(end + 1);
      }
    });
    this.process.stdio[3].on('error', () => {});
  }

  take(message) {
    const waiting = this.waiting.get(message.id);
    if (waiting) {
      this.waiting.delete(message.id);
      if (message.error) waiting.reject(new Error(JSON.stringify(message.error)));
      else waiting.resolve(message.result);
    } else {
      for (const listener of [...this.listeners]) listener(message);
    }
  }

  fail(error) {
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  send(method, params, sessionId) {
    this.next += 1;
    const id = this.next;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  /** Ends the browser. */
  async close() {
    const ended = new Promise((resolve) => this.process.once('close', resolve));
    await this.send('Browser.close').catch(() => {});
    await ended;
  }

  /** Opens a tab, in another context of the browser if one is named. */
  async page(browserContextId) {
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId);
    await page.send('Page.enable');
    await page.send('Runtime.enable');
    await page.send('Log.enable');
    return page;
  }
}

class Page {
  constructor(browser, session) {
    this.browser = browser;
    this.session = session;
    this.errors = [];
    browser.listeners.push((message) => {
      if (message.sessionId !== session) return;
      if (message.method === 'Log.entryAdded' && message.params.entry.level === 'error') {
        this.errors.push(message.params.entry.text);
      }
      if (message.method === 'Runtime.exceptionThrown') {
        this.errors.push(JSON.stringify(message.params.exceptionDetails));
      }
    });
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.session);
  }

  /** Opens an address and waits for the end of its load. */
  async open(address) {
    const loaded = this.nextLoad();
    const { errorText } = await this.send('Page.navigate', { url: address });
    if (errorText) throw new Error(errorText);
    await loaded;
  }

  nextLoad() {
    return new Promise((resolve) => {
      const listener = (message) => {
        if (message.sessionId === this.session && message.method === 'Page.loadEventFired') {
          this.browser.listeners.splice(this.browser.listeners.indexOf(listener), 1);
          resolve();
        }
      };
      this.browser.listeners.push(listener);
    });
  }

  async reload() {
    const loaded = this.nextLoad();
    await this.send('Page.reload');
    await loaded;
  }

  /** Runs a script that leaves the page, and waits for the end of the next load. */
  async follow(expression) {
    const loaded = this.nextLoad();
    await this.evaluate(`void setTimeout(() => ${expression})`);
    // An evaluation would fail if it ran while the browser replaced the page.
    await loaded;
  }

  /** Goes back or forward in the history. */
  async traverse(delta) {
    const { currentIndex, entries } = await this.send('Page.getNavigationHistory');
    const loaded = this.nextLoad();
    await this.send('Page.navigateToHistoryEntry', { entryId: entries[currentIndex + delta].id });
    // A page from the back-forward cache has no load event.
    await Promise.race([loaded, new Promise((resolve) => setTimeout(resolve, 1000))]);
  }

  /** Fills `responses` from now on: url, status, protocol, isCached, fields in lower case. */
  async watch() {
    this.responses = [];
    this.browser.listeners.push(({ sessionId, method, params }) => {
      if (sessionId !== this.session || method !== 'Network.responseReceived') return;
      const { url, status, protocol, fromDiskCache, headers } = params.response;
      const fields = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
      this.responses.push({ url, status, protocol, isCached: fromDiskCache, fields });
    });
    await this.send('Network.enable');
  }

  async evaluate(expression, contextId) {
    const params = { expression, awaitPromise: true, returnByValue: true, contextId };
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', params);
    if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
    return result.value;
  }

  /** Waits until an expression is true. */
  async until(expression) {
    const end = Date.now() + PATIENCE_MS;
    while (!(await this.evaluate(expression))) {
      if (Date.now() > end) throw new Error(`never true: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async press(key, code) {
    const params = { key, code: key, windowsVirtualKeyCode: code };
    if (key === 'Enter') params.text = '\r';
    await this.send('Input.dispatchKeyEvent', { type: 'keyDown', ...params });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...params });
  }
}

module.exports = { Browser };
