// Firefox on one page until it is told to end, for interop/browser.sh.
//
//   node show.js PROFILE PROXY URL [PREFERENCE=JSON...]
'use strict';
const { Browser } = require('./firefox');

const [profile, proxy, url, ...preferences] = process.argv.slice(2);
const parse = (text) => [text.slice(0, text.indexOf('=')), JSON.parse(text.slice(text.indexOf('=') + 1))];
const browser = new Browser(proxy, profile, Object.fromEntries(preferences.map(parse)));

process.on('SIGTERM', () => browser.process.kill());
browser.process.on('exit', () => process.exit());
browser.page().then((page) => page.open(url)).catch((error) => console.log(error.message));
